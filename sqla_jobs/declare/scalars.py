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
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final
from uuid import UUID

from sqla_jobs.declare.strict import (
    Decode,
    Encode,
    Hooks,
    Problem,
    a_kind,
    each_item,
    key_step,
    wrong,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _exactly(type_: type) -> Encode:
    # Exact classes: a bool is an int to isinstance(), and a str subclass would come
    # back as a plain str.
    expected = a_kind(type_)

    def encode(value: object) -> object:
        if type(value) is type_:
            return value
        raise wrong(value, expected)

    return encode


def _as_is(encode: Encode) -> Decode:
    return lambda data, _: encode(data)


def _int_from(data: object, _: object) -> int:
    if type(data) is int:
        return data
    raise wrong(data, "an int")


def _str_from(data: object, _: object) -> str:
    if type(data) is str:
        return data
    raise wrong(data, "a str")


def _float(value: object) -> float:
    if type(value) is float:
        number: float = value
    elif type(value) is int:
        try:
            number = float(value)
        except OverflowError:
            raise Problem("is an int too large for a float") from None
        if number != value:
            raise Problem("is an int that no float equals")
    else:
        raise wrong(value, "a float")
    if not math.isfinite(number):
        raise Problem("is NaN or infinite, which JSON cannot hold")
    return number


def _datetime_to(value: object) -> str:
    if not isinstance(value, datetime):
        raise wrong(value, "a datetime")
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Problem("has a time zone that does not tell its offset")
    return value.isoformat()


def _date_to(value: object) -> str:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise wrong(value, "a date")
    return value.isoformat()


def _time_to(value: object) -> str:
    if not isinstance(value, time):
        raise wrong(value, "a time")
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Problem("has a time zone whose offset depends on the day")
    return value.isoformat()


def _timedelta_to(value: object) -> str:
    if not isinstance(value, timedelta):
        raise wrong(value, "a timedelta")
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


def _decimal_to(value: object) -> str:
    if not isinstance(value, Decimal):
        raise wrong(value, "a Decimal")
    if not value.is_finite():
        raise Problem("is NaN or infinite, which JSON cannot hold")
    return str(value)


def _decimal_from(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError
    return number


def _uuid_to(value: object) -> str:
    if not isinstance(value, UUID):
        raise wrong(value, "a UUID")
    return str(value)


def _bytes_to(value: object) -> str:
    if not isinstance(value, bytes):
        raise wrong(value, "bytes")
    return base64.b64encode(value).decode("ascii")


def _bytes_from(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _from_text(expected: str, parse: Callable[[str], object]) -> Decode:
    def decode(data: object, _: object) -> object:
        if type(data) is not str:
            raise wrong(data, f"the text of {expected}")
        try:
            return parse(data)
        except (ValueError, OverflowError, InvalidOperation, binascii.Error):
            raise Problem(f"is not the text of {expected}") from None

    return decode


def _hooks(encode: Encode, decode: Decode, json: type = str) -> Hooks:
    return Hooks(encode, decode, frozenset({json}))


_none: Final = _exactly(type(None))
_bool: Final = _exactly(bool)

SCALARS: Final[dict[object, Hooks]] = {
    None: _hooks(_none, _as_is(_none), type(None)),
    type(None): _hooks(_none, _as_is(_none), type(None)),
    bool: _hooks(_bool, _as_is(_bool), bool),
    int: _hooks(_exactly(int), _int_from, int),
    float: _hooks(_float, _as_is(_float), float),
    str: _hooks(_exactly(str), _str_from),
    bytes: _hooks(_bytes_to, _from_text("bytes in base64", _bytes_from)),
    datetime: _hooks(_datetime_to, _from_text("a datetime", datetime.fromisoformat)),
    date: _hooks(_date_to, _from_text("a date", date.fromisoformat)),
    time: _hooks(_time_to, _from_text("a time", time.fromisoformat)),
    timedelta: _hooks(_timedelta_to, _from_text("a timedelta", _timedelta_from)),
    Decimal: _hooks(_decimal_to, _from_text("a Decimal", _decimal_from)),
    UUID: _hooks(_uuid_to, _from_text("a UUID", UUID)),
}
"""The plain types, each with how it is written and read."""


def encode_native(value: object) -> object:
    """Return *value* if it is plain JSON data, all the way down.

    For values without a declared type (``Any``): what is not JSON by itself (a tuple,
    a date, an object) would come back as something else.
    """
    kind = type(value)
    if kind is float:
        return _float(value)
    if kind in {type(None), bool, int, str}:
        return value
    # Exact classes again; isinstance() beside them tells the type checker.
    if kind is list and isinstance(value, list):
        return each_item(encode_native, value)
    if kind is dict and isinstance(value, dict):
        fields: dict[str, object] = {}
        for key, item in value.items():
            if type(key) is not str:
                raise Problem(f"has a key that is {a_kind(type(key))}, not a str")
            try:
                fields[key] = encode_native(item)
            except Problem as problem:
                raise problem.under(key_step(key)) from None
        return fields
    raise Problem(
        f"is {a_kind(kind)}, and no declared type says how to store it: annotate its "
        "type"
    )


NATIVE: Final = Hooks(
    encode_native,
    lambda data, _: data,
    frozenset({type(None), bool, int, float, str, list, dict}),
)
"""Plain JSON data, for values without a declared type."""
