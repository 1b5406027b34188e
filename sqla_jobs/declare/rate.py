"""Rates: so many in so much time."""

from __future__ import annotations

from datetime import timedelta

import attrs

from sqla_jobs.declare.duration import Duration, parse_duration
from sqla_jobs.exc import InvalidOptionError


def _whole(value: object, option: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOptionError(option, f"is {value!r}, not a whole number from 1")
    return value


def _count(value: int) -> int:
    return _whole(value, "Rate(count)")


def _per(value: Duration) -> timedelta:
    return parse_duration(value, field="Rate(per)")


def _burst(value: int | None) -> int | None:
    return None if value is None else _whole(value, "Rate(burst)")


@attrs.frozen
class Rate:
    """At most *count* in every *per*: ``Rate(100, per="1s")``.

    ``burst`` is how many may come at once after a quiet time: *count* where it is None.
    A bad value raises a :exc:`.DeclarationError`.
    """

    count: int = attrs.field(converter=_count)
    per: timedelta = attrs.field(converter=_per, kw_only=True)
    burst: int | None = attrs.field(default=None, converter=_burst, kw_only=True)

    @property
    def per_second(self) -> float:
        """How many there are in one second."""
        return self.count / self.per.total_seconds()
