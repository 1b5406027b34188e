"""When a failed attempt is run again: pure arithmetic, no clock and no database."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias

import attrs

from sqla_jobs.declare.duration import Duration, parse_duration
from sqla_jobs.declare.signals import Discard, RetryLater
from sqla_jobs.exc import InvalidOptionError

Errors: TypeAlias = (
    type[BaseException] | tuple[type[BaseException], ...] | Callable[[Exception], bool]
)
"""Which errors: a class, a tuple of classes, or a predicate."""

TICK: Final = timedelta(milliseconds=10)
"""The shortest time between two attempts of a job, whatever was asked: no tight loop."""

MAX_ATTEMPTS: Final = 1_000_000
"""The largest ``attempts=``."""

_logger = logging.getLogger("sqla_jobs.retry")


@attrs.frozen(kw_only=True)
class Backoff:
    """How long to wait after each failed attempt; made by :func:`.exponential` or :func:`.constant`.

    After failed attempt *n* the wait is ``first * factor ** (n - 1)``, at most ``cap``,
    of which jitter takes away a random share of up to ``jitter``. So it never passes
    the cap, lies in ``[(1 - jitter) * wait, wait]``, and is never below one tick (10 ms).
    """

    first: timedelta
    cap: timedelta
    jitter: float
    factor: int

    def delay(
        self, attempt: int, *, chance: Callable[[], float] = random.random
    ) -> timedelta:
        """Return the wait after failed *attempt* (1 is the first).

        *chance* gives a number in [0, 1).
        """
        # Beyond 63 doublings even a microsecond is past every cap: the power of a huge
        # attempt number is never computed.
        steps = min(max(attempt, 1) - 1, 63)
        micros = timedelta(microseconds=1)
        wait = min((self.first // micros) * self.factor**steps, self.cap // micros)
        share = 1.0 - self.jitter * chance()
        return max(timedelta(microseconds=int(wait * share)), TICK)


def exponential(
    first: Duration, *, cap: Duration = "1h", jitter: float = 0.2
) -> Backoff:
    """Return a backoff that starts with *first* and doubles up to *cap*.

    *jitter* (0 to 1) is the largest share that is randomly taken off each wait, so
    that jobs which failed together do not come back together. Zero durations, a *cap*
    below *first* and other jitters are refused.
    """
    start = parse_duration(first, field="first")
    limit = parse_duration(cap, field="cap")
    if limit < start:
        raise InvalidOptionError("cap", f"is {limit}, shorter than first={start}")
    if isinstance(jitter, bool) or not isinstance(jitter, int | float):
        raise InvalidOptionError("jitter", "is not a number from 0 to 1")
    if not 0 <= jitter <= 1:  # also refuses NaN
        raise InvalidOptionError("jitter", f"is {jitter!r}, not from 0 to 1")
    return Backoff(first=start, cap=limit, jitter=float(jitter), factor=2)


def constant(delay: Duration) -> Backoff:
    """Return a backoff that always waits *delay*, without jitter."""
    wait = parse_duration(delay, field="delay")
    return Backoff(first=wait, cap=wait, jitter=0.0, factor=1)


def _as_attempts(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionError("attempts", "is not a whole number")
    if not 1 <= value <= MAX_ATTEMPTS:
        raise InvalidOptionError(
            "attempts", f"is {value}: the first run counts, so give 1 to {MAX_ATTEMPTS}"
        )
    return value


def _check_errors(_: object, field: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is neither error class, tuple of them, nor predicate."""
    if isinstance(value, type):
        valid = issubclass(value, BaseException)
    elif isinstance(value, tuple):
        valid = all(
            isinstance(item, type) and issubclass(item, BaseException) for item in value
        )
    else:
        valid = callable(value)
    if not valid:
        raise InvalidOptionError(
            field.name, "is no error class, tuple of error classes or predicate"
        )


@attrs.frozen(kw_only=True)
class Retry:
    """How often a job is tried, how long apart, and after which errors not again.

    ``attempts`` counts the first run: 1 never retries. An error is retried when it
    matches ``retry_on`` (every error, if not given) and does not match ``dead_on``.

    A predicate that raises does not decide: the error is logged by ``sqla_jobs.retry``
    and the failed attempt is retried, which ``attempts`` bounds. Predicates see
    ``Exception`` only; ``SystemExit`` and the like match classes alone.
    """

    attempts: int = attrs.field(default=10, converter=_as_attempts)
    backoff: Backoff = attrs.field(
        factory=lambda: exponential("2s", cap="10m", jitter=0.2),
        validator=attrs.validators.instance_of(Backoff),
    )
    retry_on: Errors = attrs.field(default=BaseException, validator=_check_errors)
    dead_on: Errors = attrs.field(default=(), validator=_check_errors)

    def decide(
        self, error: BaseException, attempt: int, max_attempts: int | None = None
    ) -> timedelta | None:
        """Return how long to wait after *attempt* failed with *error*; ``None``: dead.

        *attempt* counts from 1. *max_attempts* is the row's, which may differ from
        this declaration's (an operator gave it more). :class:`.RetryLater` brings its
        own wait; :class:`.Discard` is dead.
        """
        limit = self.attempts if max_attempts is None else max_attempts
        if attempt >= limit or isinstance(error, Discard):
            return None
        if isinstance(error, RetryLater):
            return max(error.delay, TICK)
        if _matches(self.dead_on, error, unsure=False):
            return None
        if not _matches(self.retry_on, error, unsure=True):
            return None
        return self.backoff.delay(attempt)


def _matches(errors: Errors, error: BaseException, *, unsure: bool) -> bool:
    """Whether *error* is one of *errors*; *unsure* when a predicate cannot tell."""
    if isinstance(errors, type | tuple):
        return isinstance(error, errors)
    if not isinstance(error, Exception):
        return unsure
    try:
        return bool(errors(error))
    except (Exception, SystemExit):
        # User code in the path of every failure: it must not take the worker with it.
        _logger.exception(
            "a retry_on/dead_on predicate raised: %s is retried", type(error).__name__
        )
        return unsure
