"""Durations as people write them: ``timedelta`` or ``"250ms" "30s" "10m" "2h" "3d" "1w"``.

A bad one is refused where it is written, with the name of the field it was given for.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import Final, TypeAlias

from sqla_jobs.exc import DurationError

Duration: TypeAlias = str | timedelta
"""A ``timedelta``, or a decimal number followed by ``ms``, ``s``, ``m``, ``h``, ``d`` or ``w``."""

MAX_DURATION: Final = timedelta(days=365_000)
"""The longest duration (about 1,000 years): now plus it is still a valid ``datetime``."""

_MICROSECONDS: Final = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
# Bounded, so that no text costs time or memory. Programs do write "1e-05s": an f-string
# over a small float.
_FORM: Final = re.compile(
    r"(?P<number>[+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?)"
    r"(?P<unit>ms|s|m|h|d|w)",
    re.ASCII,
)
_NOT_FINITE: Final = re.compile(r"[+-]?(?:nan|inf|infinity)[a-z]*", re.IGNORECASE)


def parse_duration(value: object, *, field: str, zero: bool = False) -> timedelta:
    """Return *value*, a :data:`.Duration` given for *field*, as a ``timedelta``.

    Zero is refused unless *zero* is true (``delay=`` means "now" by it); negative, not
    finite and over-range values, plain numbers and other texts always are, with
    :exc:`.DurationError`. Fractions below a microsecond are cut off.
    """
    parsed = _parse(value, field)
    if parsed < timedelta(0):
        raise DurationError(field, value, "negative")
    if parsed > MAX_DURATION:
        raise DurationError(field, value, f"longer than {MAX_DURATION.days} days")
    if not parsed and not zero:
        raise DurationError(field, value, "zero, or below one microsecond")
    return parsed


def _parse(value: object, field: str) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise DurationError(field, value, f"a {type(value).__name__}, without a unit")
    text = value.strip()
    found = _FORM.fullmatch(text)
    if found is None:
        if _NOT_FINITE.fullmatch(text):
            raise DurationError(field, value, "not finite")
        raise DurationError(
            field, value, "not a number followed by ms, s, m, h, d or w"
        )
    # A Fraction: what Decimal does depends on the application's decimal context.
    microseconds = Fraction(found["number"]) * _MICROSECONDS[found["unit"]]
    if abs(microseconds) > MAX_DURATION // timedelta(microseconds=1):
        reason = (
            "negative" if microseconds < 0 else f"longer than {MAX_DURATION.days} days"
        )
        raise DurationError(field, value, reason)
    if microseconds < 0:
        raise DurationError(field, value, "negative")
    return timedelta(microseconds=int(microseconds))
