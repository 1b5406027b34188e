"""How each plain type becomes JSON and comes back: strictly, and exactly as declared.

=============  ====================================================================
type           in JSON
=============  ====================================================================
None, bool     as they are; a bool is no int
int            a number of any size (JSON text has no 64-bit limit)
float          a number; an int given for it becomes the equal float, NaN is refused
str            as it is: nothing is normalised
bytes          base64
datetime       ISO 8601; what was aware is the same instant with the same offset (a
               zone's name is not kept), what was naive stays naive
date, time     ISO 8601
timedelta      seconds, as decimal text
Decimal        as text, with its trailing zeros; NaN and infinities are refused
UUID           its usual text
=============  ====================================================================

Errors tell types, never values: they end in logs, and values may be secrets.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn, TypeAlias
from uuid import UUID

Encode: TypeAlias = Callable[[Any], Any]
"""Turns a value into JSON data, or raises :class:`.Problem`."""
Decode: TypeAlias = Callable[[Any, Any], Any]
"""Turns JSON data into a value, or raises; the second argument is cattrs's, unused."""


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


def wrong(value: object, expected: str) -> NoReturn:
    """Raise the :class:`.Problem` of a value of another type than *expected*."""
    raise Problem(f"is {_a(type(value))}, not {expected}")


def _a(type_: type) -> str:
    if type_ is type(None):
        return "None"
    name = type_.__qualname__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _exactly(type_: type) -> Encode:
    # Exact classes: a bool is an int to isinstance(), and a str subclass would come
    # back as a plain str.
    expected = _a(type_)

    def encode(value: Any) -> Any:
        if value.__class__ is type_:
            return value
        wrong(value, expected)

    return encode


def _as_is(encode: Encode) -> Decode:
    return lambda data, _: encode(data)


def _int_from(data: Any, _: Any) -> int:
    if data.__class__ is int:
        return data  # type: ignore[no-any-return]  # the class was just compared
    wrong(data, "an int")


def _str_from(data: Any, _: Any) -> str:
    if data.__class__ is str:
        return data  # type: ignore[no-any-return]  # the class was just compared
    wrong(data, "a str")


def _float(value: Any) -> float:
    if value.__class__ is float:
        number: float = value
    elif value.__class__ is int:
        try:
            number = float(value)
        except OverflowError:
            raise Problem("is an int too large for a float") from None
        if number != value:
            raise Problem("is an int that no float equals")
    else:
        wrong(value, "a float")
    if not math.isfinite(number):
        raise Problem("is NaN or infinite, which JSON cannot hold")
    return number


def _datetime_to(value: Any) -> str:
    if not isinstance(value, datetime):
        wrong(value, "a datetime")
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Problem("has a time zone that does not tell its offset")
    return value.isoformat()


def _date_to(value: Any) -> str:
    if not isinstance(value, date) or isinstance(value, datetime):
        wrong(value, "a date")
    return value.isoformat()


def _time_to(value: Any) -> str:
    if not isinstance(value, time):
        wrong(value, "a time")
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Problem("has a time zone whose offset depends on the day")
    return value.isoformat()


def _timedelta_to(value: Any) -> str:
    if not isinstance(value, timedelta):
        wrong(value, "a timedelta")
    micros = value // timedelta(microseconds=1)
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    seconds, rest = divmod(micros, 1_000_000)
    return f"{sign}{seconds}" + (f".{rest:06d}".rstrip("0") if rest else "")


_SECONDS: Final = re.compile(r"(-?)([0-9]{1,14})(?:\.([0-9]{1,6}))?", re.ASCII)


def _timedelta_from(text: str) -> timedelta:
    found = _SECONDS.fullmatch(text)
    if found is None:
        raise ValueError
    sign, seconds, fraction = found.groups(default="")
    length = timedelta(seconds=int(seconds), microseconds=int(fraction.ljust(6, "0")))
    return -length if sign else length


def _decimal_to(value: Any) -> str:
    if not isinstance(value, Decimal):
        wrong(value, "a Decimal")
    if not value.is_finite():
        raise Problem("is NaN or infinite, which JSON cannot hold")
    return str(value)


def _decimal_from(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError
    return number


def _uuid_to(value: Any) -> str:
    if not isinstance(value, UUID):
        wrong(value, "a UUID")
    return str(value)


def _bytes_to(value: Any) -> str:
    if not isinstance(value, bytes):
        wrong(value, "bytes")
    return base64.b64encode(value).decode("ascii")


def _bytes_from(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _from_text(expected: str, parse: Callable[[str], object]) -> Decode:
    def decode(data: Any, _: Any) -> object:
        if data.__class__ is not str:
            wrong(data, f"the text of {expected}")
        try:
            return parse(data)
        except (ValueError, OverflowError, InvalidOperation, binascii.Error):
            raise Problem(f"is not the text of {expected}") from None

    return decode


_none: Final = _exactly(type(None))
_bool: Final = _exactly(bool)

SCALARS: Final[dict[object, tuple[Encode, Decode]]] = {
    None: (_none, _as_is(_none)),
    type(None): (_none, _as_is(_none)),
    bool: (_bool, _as_is(_bool)),
    int: (_exactly(int), _int_from),
    float: (_float, _as_is(_float)),
    str: (_exactly(str), _str_from),
    bytes: (_bytes_to, _from_text("bytes in base64", _bytes_from)),
    datetime: (_datetime_to, _from_text("a datetime", datetime.fromisoformat)),
    date: (_date_to, _from_text("a date", date.fromisoformat)),
    time: (_time_to, _from_text("a time", time.fromisoformat)),
    timedelta: (_timedelta_to, _from_text("a timedelta", _timedelta_from)),
    Decimal: (_decimal_to, _from_text("a Decimal", _decimal_from)),
    UUID: (_uuid_to, _from_text("a UUID", UUID)),
}
"""The plain types, each with how it is written and read."""

_NATIVE: Final = frozenset({type(None), bool, int, float, str})


def encode_native(value: Any) -> Any:
    """Return *value* if it is plain JSON data, all the way down.

    For values without a declared type (``Any``): what is not JSON by itself (a tuple,
    a date, an object) would come back as something else.
    """
    kind = value.__class__
    if kind is float:
        return _float(value)
    if kind in _NATIVE:
        return value
    if kind is list:
        items: list[Any] = []
        try:
            for item in value:
                items.append(encode_native(item))  # noqa: PERF401 - its length is the index
        except Problem as problem:
            raise problem.under(f"[{len(items)}]") from None
        return items
    if kind is dict:
        fields: dict[str, Any] = {}
        for key, item in value.items():
            if key.__class__ is not str:
                raise Problem(f"has a key that is {_a(type(key))}, not a str")
            try:
                fields[key] = encode_native(item)
            except Problem as problem:
                raise problem.under(key_step(key)) from None
        return fields
    raise Problem(
        f"is {_a(kind)}, and no declared type says how to store it: annotate its type"
    )


def key_step(key: object) -> str:
    """Return the step of a path that leads to the value under *key* of a dict."""
    text = repr(key)
    return f"[{text if len(text) <= 40 else text[:37] + '...'}]"
