"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Self

from sqla_jobs import clock
from sqla_jobs.declare.duration import Duration, parse_duration

if TYPE_CHECKING:
    from types import TracebackType


class Clock:
    """The queue's time, frozen in this process while the block runs.

    Every statement of the library sees this instant instead of the database's time:
    delays, retries and retention then depend on :meth:`advance` alone. Time in the
    application's own code, and the database's ``now()`` in it, go on.

    :param at: where to stand (aware); the present by default.
    """

    def __init__(self, at: datetime | None = None) -> None:
        if at is not None and at.tzinfo is None:
            msg = f"{at!r} has no time zone: give an aware datetime"
            raise ValueError(msg)
        self._at = at
        self._before: datetime | None = None

    @property
    def now(self) -> datetime:
        """The present (aware, UTC)."""
        at = clock.frozen_at()
        if at is None:
            msg = "the clock is not frozen: use it as `with Clock() as clock:`"
            raise RuntimeError(msg)
        return at

    def advance(self, by: Duration) -> None:
        """Move the present on by *by*: a timedelta, or ``"90s"``, ``"1h"``, ``"3d"``.

        Nothing runs by itself; what has become due is run by the next ``drain``.
        """
        step = parse_duration(by, field="by")
        _stand(self.now + step)

    def move_to(self, at: datetime) -> None:
        """Let *at* (aware) be the present; it may lie in the past."""
        if at.tzinfo is None:
            msg = f"{at!r} has no time zone: give an aware datetime"
            raise ValueError(msg)
        _stand(at)

    def __enter__(self) -> Self:
        """Stop the clock; clocks may be nested."""
        self._before = clock.frozen_at()
        # A test's frozen present only has to be near the rows that are there already.
        _stand(self._at or self._before or datetime.now(UTC))  # noqa: TID251 - see above
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let time go on, or stand where it stood before."""
        if self._before is None:
            clock.thaw()
        else:
            clock.freeze(self._before)


def _stand(at: datetime) -> None:
    """Freeze at *at*, rounded up to milliseconds.

    SQLite computes in them: a job's ``run_at`` could lie a rounding after the present
    that it was made of, and would not be due.
    """
    beyond = at.microsecond % 1000
    clock.freeze(at + timedelta(microseconds=1000 - beyond) if beyond else at)
