"""What an error means for its attempt: from what was raised to an outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sqla_jobs.declare.signals import Discard, Snooze
from sqla_jobs.exc import JobAbortedError
from sqla_jobs.queue import outcome as ended
from sqla_jobs.worker.errors import bounded, chain, error_text, error_type

if TYPE_CHECKING:
    from datetime import timedelta

    from sqla_jobs.exc import JobTimeoutError
    from sqla_jobs.worker.attempts import Attempt

_ASKED_TO_END = (asyncio.CancelledError, JobAbortedError)


def outcome_of(error: BaseException, attempt: Attempt) -> ended.Outcome:
    """Return how *attempt* ends that *error* came out of.

    Everything a handler can raise ends here, ``SystemExit`` and ``KeyboardInterrupt``
    included: job code does not decide about the worker. A ``CancelledError`` that
    nobody asked for is a failure like any other.
    """
    if isinstance(error, Snooze):
        return ended.Snooze(error.delay)
    state = attempt.state
    if state.cancelled and any(isinstance(e, _ASKED_TO_END) for e in chain(error)):
        if attempt.interrupted:
            return ended.Interrupted("the worker was stopped")
        return ended.Cancelled(state.cancel_reason)
    if isinstance(error, Discard):
        return ended.Dead(error_type(error), bounded(error.reason))
    claim = attempt.claim
    delay = attempt.spec.retry.decide(error, claim.attempt, claim.max_attempts)
    return _failed(delay, error_type(error), error_text(error))


def timed_out(error: JobTimeoutError, attempt: Attempt) -> ended.Outcome:
    """Return how *attempt* ends that ran past its time."""
    claim = attempt.claim
    delay = attempt.spec.retry.decide(error, claim.attempt, claim.max_attempts)
    return _failed(delay, error_type(error), error_text(error), timed_out=True)


def undecodable(error: BaseException) -> ended.Outcome:
    """Return how an attempt ends whose input cannot be read: no retry can help."""
    return ended.Dead(error_type(error), error_text(error))


def _failed(
    delay: timedelta | None, type_: str, text: str, *, timed_out: bool = False
) -> ended.Outcome:
    if delay is None:
        return ended.Dead(type_, text, timed_out=timed_out)
    return ended.Retry(delay, type_, text, timed_out=timed_out)
