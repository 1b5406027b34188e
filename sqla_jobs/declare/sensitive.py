"""``Sensitive[T]``: fields whose values no view, log, error or span shows."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, TypeVar

import attrs

from sqla_jobs.declare.shapes import hashable, marks, parts, plain

T = TypeVar("T")


class SensitiveMark:
    """The type of the mark that :data:`.Sensitive` puts on a type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "sqla_jobs.sensitive"


SENSITIVE: Final = SensitiveMark()
"""The mark itself."""

Sensitive: TypeAlias = Annotated[T, SENSITIVE]
"""``Sensitive[str]`` is a str to type checkers and codecs, and masked in every view."""

MASKED: Final = "***"
"""What stands for a sensitive value."""


@attrs.define(eq=False)
class Mask:
    """What to hide of a decoded JSON value; recursive like the type it was made from.

    ``steps`` are the masks of its parts, ``members`` those of a union's members: all of
    them apply, since JSON does not always tell which member a value is of.
    """

    hidden: bool = False
    steps: dict[str, Mask] = attrs.field(factory=dict)
    members: list[Mask] = attrs.field(factory=list)

    def apply(self, data: object) -> object:
        """Return a copy of *data* with ``"***"`` in the place of hidden values."""
        if self.hidden:
            return MASKED
        for member in self.members:
            data = member.apply(data)
        each = self.steps.get("[*]")
        if isinstance(data, dict):
            return {
                key: _masked(self.steps.get(f".{key}", each), item)
                for key, item in data.items()
            }
        if isinstance(data, list):
            return [
                _masked(self.steps.get(f"[{index}]", each), item)
                for index, item in enumerate(data)
            ]
        return data

    def paths(self) -> tuple[str, ...]:
        """Return where hidden values stand (``"items[*].token"``), sorted.

        A recursive type is followed once; the empty path is the whole value.
        """
        return tuple(sorted({path.removeprefix(".") for path in self._paths("", ())}))

    def _paths(self, path: str, outer: tuple[Mask, ...]) -> list[str]:
        if self.hidden:
            return [path]
        if any(mask is self for mask in outer):
            return []
        inner = (*outer, self)
        parts = [*self.steps.items(), *(("", member) for member in self.members)]
        return [
            found for step, mask in parts for found in mask._paths(path + step, inner)
        ]


def _masked(mask: Mask | None, data: object) -> object:
    return data if mask is None else mask.apply(data)


def mask_of(type_: object) -> Mask:
    """Return what to hide of the JSON of *type_*."""
    return _mask_of(type_, {})


def _mask_of(type_: object, known: dict[object, Mask]) -> Mask:
    if any(mark is SENSITIVE for mark in marks(type_)):
        return Mask(hidden=True)
    type_ = plain(type_)
    if not hashable(type_):  # Annotated metadata inside; such a type is not recursive
        return _fill(Mask(), type_, known)
    if type_ not in known:
        known[type_] = Mask()
        _fill(known[type_], type_, known)
    return known[type_]


def _fill(mask: Mask, type_: object, known: dict[object, Mask]) -> Mask:
    for step, part in parts(type_):
        found = _mask_of(part, known)
        if step == "|":
            mask.members.append(found)
        elif step == "{}":
            # A sensitive key cannot be masked in its place: hide the whole dict.
            mask.hidden = mask.hidden or found.hidden
        else:
            mask.steps[step] = found
    return mask
