"""What a handler raises to say how its attempt ends, when it is not an error of its own."""

from __future__ import annotations

from sqla_jobs.declare.duration import Duration, parse_duration


class RetryLater(Exception):  # noqa: N818 - a request, not an error
    """Fail this attempt and run the job again after *delay*, instead of the backoff's.

    Counts as a failed attempt: when it was the last one, the job is dead. A zero delay
    means the next tick, not a tight loop. A bad *delay* raises :exc:`.DurationError`.
    """

    def __init__(self, delay: Duration) -> None:
        self.delay = parse_duration(delay, field="RetryLater.delay", zero=True)
        super().__init__(delay)


class Discard(Exception):  # noqa: N818 - a request, not an error
    """End the job as dead now, with *reason*, whatever attempts are left."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Snooze(Exception):  # noqa: N818 - a request, not an error
    """Run the job again after *delay*; not a failure, the attempt is not counted.

    A zero *delay* is refused (:exc:`.DurationError`): it would be a loop without end.
    """

    def __init__(self, delay: Duration) -> None:
        self.delay = parse_duration(delay, field="Snooze.delay")
        super().__init__(delay)
