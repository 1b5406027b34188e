"""Inputs and outputs as JSON text: strict at the call, and exact when read back.

What cannot be stored is refused where it is given, with the path of the field
(``input.items[3].day``): wrong types, NUL characters and lone surrogates (also in keys),
NaN, and more bytes than the limit. Nothing is pickled, and reading builds no type that
was not declared. Unknown fields are ignored when read, so that an old worker understands
a newer enqueuer; missing ones are an error.
"""

from __future__ import annotations

import json
from threading import RLock
from typing import Any, Final, Generic, NoReturn, TypeVar

from sqla_jobs.declare.hooks import hooks_for
from sqla_jobs.declare.sensitive import Mask, mask_of
from sqla_jobs.declare.shapes import hashable
from sqla_jobs.declare.strict import Hooks, Problem, Unsupported, key_step
from sqla_jobs.declare.text import bad_character
from sqla_jobs.exc import PayloadError, UnsupportedTypeError

T = TypeVar("T")

# A cycle ends in RecursionError, so the encoder need not look for one.
_write: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode
_lock = RLock()
_known: dict[tuple[object, str, int], Codec[Any]] = {}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_read: Final = json.JSONDecoder(parse_constant=_refuse_constant).decode


class Codec(Generic[T]):
    """Writes and reads the values of one declared type.

    ``what`` begins every path in errors (``input``); ``limit`` is in bytes of UTF-8.
    """

    __slots__ = ("_hooks", "_mask", "limit", "type", "what")

    def __init__(self, type_: object, *, what: str, limit: int) -> None:
        self.type = type_
        self.what = what
        self.limit = limit
        self._hooks: Hooks | None = None
        self._mask: Mask | None = None

    def check(self) -> None:
        """Raise :exc:`.UnsupportedTypeError` if the type cannot be stored.

        A forward reference that does not resolve yet is no error: it is looked at again
        at the first use.
        """
        try:
            self._ready()
        except NameError:
            return

    def encode(self, value: T) -> str:
        """Return *value* as compact JSON text; raise :exc:`.PayloadError`."""
        hooks = self._hooks or self._prepared()
        try:
            data = hooks.encode(value)
            text = _write(data)
        except Problem as problem:
            raise self._error(problem) from None
        except RecursionError:
            raise PayloadError(self.what, "is nested too deeply") from None
        except ValueError as error:
            raise PayloadError(self.what, f"cannot be written ({error})") from None
        size = self._size(text)
        # A NUL is written as this escape; an escaped backslash before "u0000" looks the
        # same, so that the data itself decides. No size: a lone surrogate.
        if size is None or "\\u0000" in text:
            self._refuse_text(data)
        if size is not None and size > self.limit:
            raise PayloadError(
                self.what,
                f"is {size:,} bytes of JSON, and the limit is {self.limit:,}: store the "
                "data elsewhere and pass its key",
            )
        return text

    def decode(self, text: str) -> T:
        """Return the value that *text* holds; raise :exc:`.PayloadError`.

        The size is not checked: what was accepted once stays readable.
        """
        hooks = self._hooks or self._prepared()
        try:
            value: T = hooks.decode(_read(text), None)
        except Problem as problem:
            raise self._error(problem) from problem.__cause__
        except RecursionError:
            raise PayloadError(self.what, "is nested too deeply") from None
        except (ValueError, TypeError) as error:
            raise PayloadError(self.what, f"is no JSON ({error})") from None
        return value

    @property
    def sensitive_paths(self) -> tuple[str, ...]:
        """Where :data:`.Sensitive` values stand, as ``"card.number"`` or ``"items[*].pin"``."""
        return self._mask_ready().paths()

    def mask(self, data: object) -> object:
        """Return decoded JSON *data* of this type with its sensitive values as ``"***"``.

        Never fails: data of another shape (an older version's) is masked where it fits.
        """
        return self._mask_ready().apply(data)

    def _mask_ready(self) -> Mask:
        if self._mask is None:
            self._mask = mask_of(self.type)
        return self._mask

    def _prepared(self) -> Hooks:
        try:
            return self._ready()
        except NameError as error:
            raise UnsupportedTypeError(
                self.what, self.type, f"mentions a type that is not there ({error})"
            ) from error

    def _ready(self) -> Hooks:
        try:
            self._hooks = hooks = hooks_for(self.type)
        except Unsupported as refused:
            path = self.what + "".join(reversed(refused.steps))
            raise UnsupportedTypeError(path, refused.type, refused.reason) from refused
        return hooks

    def _error(self, problem: Problem) -> PayloadError:
        return PayloadError(self.what + problem.path, problem.reason)

    @staticmethod
    def _size(text: str) -> int | None:
        """Return the bytes of *text* in UTF-8; ``None`` when it has no such form."""
        if text.isascii():
            return len(text)
        try:
            return len(text.encode())
        except UnicodeEncodeError:
            return None

    def _refuse_text(self, data: object) -> None:
        try:
            _check_text(data)
        except Problem as problem:
            raise self._error(problem) from None


def _check_text(data: object) -> None:
    """Raise the :class:`.Problem` of the first bad character in JSON *data*."""
    if isinstance(data, str):
        bad = bad_character(data)
        if bad is not None:
            raise Problem(f"contains {bad}")
    elif isinstance(data, dict):
        for key, item in data.items():
            bad = bad_character(key)
            if bad is not None:
                raise Problem(f"has a key that contains {bad}").under(key_step(key))
            # A field of a class, most often; JSON does not tell it from a dict's key.
            _under(f".{key}" if key.isidentifier() else key_step(key), item)
    elif isinstance(data, list):
        for index, item in enumerate(data):
            _under(f"[{index}]", item)


def _under(step: str, data: object) -> None:
    try:
        _check_text(data)
    except Problem as problem:
        raise problem.under(step) from None


def codec_for(type_: object, *, what: str, limit: int) -> Codec[Any]:
    """Return the codec of *type_*, the same one for the same arguments.

    Raises :exc:`.UnsupportedTypeError` for a type that JSON cannot carry exactly.
    """
    key = (type_, what, limit)
    if not hashable(key):  # Annotated metadata
        codec: Codec[Any] = Codec(type_, what=what, limit=limit)
        codec.check()
        return codec
    with _lock:
        codec = _known.get(key) or Codec(type_, what=what, limit=limit)
        codec.check()
        _known[key] = codec
        return codec
