"""The vocabulary of strict conversion: problems with their path, and hooks.

Errors tell types, never values: they end in logs, and values may be secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import attrs

Encode: TypeAlias = Callable[[Any], Any]
"""Turns a value into JSON data, or raises :class:`.Problem`."""
Decode: TypeAlias = Callable[[Any, Any], Any]
"""Turns JSON data into a value, or raises; the second argument is cattrs's, unused."""


@attrs.frozen
class Hooks:
    """How values of one type are written and read.

    ``json`` are the Python classes its JSON has (``str``, ``dict``, ...), by which the
    members of a union are told apart.
    """

    encode: Encode
    decode: Decode
    json: frozenset[type]


class Unsupported(Exception):  # noqa: N818 - becomes an UnsupportedTypeError
    """A type that cannot be stored; *reason* continues a sentence that begins with it."""

    def __init__(self, type_: object, reason: str) -> None:
        super().__init__(type_, reason)
        self.type, self.reason = type_, reason
        self.steps: list[str] = []


class Problem(Exception):  # noqa: N818 - becomes a PayloadError at the border
    """A value that cannot be encoded or decoded; the path grows on the way up."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self._steps: list[str] = []

    def under(self, step: str) -> Problem:
        """Say that the value stood at *step* (``".name"`` or ``"[3]"``) of another."""
        self._steps.append(step)
        return self

    def copy(self) -> Problem:
        """Return the same problem as a new exception."""
        new = Problem(self.reason)
        new._steps = list(self._steps)
        return new

    @property
    def path(self) -> str:
        """The path from the outermost value to the refused one."""
        return "".join(reversed(self._steps))


def wrong(value: object, expected: str) -> Problem:
    """Return the :class:`.Problem` of a value of another type than *expected*."""
    return Problem(f"is {a_kind(type(value))}, not {expected}")


def a_kind(type_: type) -> str:
    """Return the name of *type_* with its article, for messages."""
    if type_ is type(None):
        return "None"
    name = type_.__qualname__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def each_item(convert: Callable[[Any], Any], values: Iterable[object]) -> list[Any]:
    """Apply *convert* to each value; the path of a problem gets the index."""
    items: list[Any] = []
    try:
        for value in values:
            items.append(convert(value))  # noqa: PERF401 - its length is the index
    except Problem as problem:
        raise problem.under(f"[{len(items)}]") from None
    return items


def key_step(key: object) -> str:
    """Return the step of a path that leads to the value under *key* of a dict."""
    text = repr(key)
    return f"[{text if len(text) <= 40 else text[:37] + '...'}]"
