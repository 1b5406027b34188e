"""Enqueue: validate and encode at the call, write at the end of the transaction."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session
from uuid_utils.compat import uuid7

from sqla_jobs.declare.duration import parse_duration
from sqla_jobs.declare.job import ON_DUPLICATE, JobSpec
from sqla_jobs.exc import EnqueueArgumentError
from sqla_jobs.queue import ledger, stash
from sqla_jobs.queue.pending import Enqueued, PendingJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqla_jobs.declare.duration import Duration
    from sqla_jobs.declare.job import In, OnDuplicate

ENQUEUED_BY: Final = "enqueued_by"
"""The key of ``session.info`` that gives the default of ``enqueued_by=``."""
MAX_ENQUEUED_BY: Final = 200


def enqueue(
    session: Session | scoped_session[Any] | Connection,
    job: JobSpec[In, Any],
    input: In,
    /,
    *,
    run_at: datetime | None = None,
    delay: Duration | None = None,
    priority: int | None = None,
    on_duplicate: OnDuplicate | None = None,
    enqueued_by: str | None = None,
) -> Enqueued:
    """Enqueue *job* with *input* in the transaction of *session*.

    Does no I/O, like ``add()``: the job is written by the last statement before the
    transaction's commit (or the next savepoint, or ``write_jobs()``), and vanishes with
    its rollback. Begins the transaction when there is none. Any Session, scoped_session
    or Core Connection will do; ``JobSession.enqueue`` is the same as a method.

    :param run_at: the instant from which it may run; aware.
    :param delay: the same from now, counted from this call; not both.
    :param priority: 0 runs first, 9 last; the declaration's by default.
    :param on_duplicate: what to do when the job exists; the declaration's by default.
    :param enqueued_by: who asked, for the record only; ``session.info["enqueued_by"]``
        by default.
    :raises PayloadError: the input is not of its type, or too large.
    :raises EnqueueArgumentError: an option is not valid.
    :raises EnqueueRoutingError: the session would keep jobs apart from its rows.
    """
    target = _resolve(session)
    options = _Options(
        job,
        target,
        run_at=run_at,
        delay=delay,
        priority=priority,
        on_duplicate=on_duplicate,
        enqueued_by=enqueued_by,
    )
    pending = options.pending(input)
    _add(target, pending)
    return pending.handle


def enqueue_many(
    session: Session | scoped_session[Any] | Connection,
    job: JobSpec[In, Any],
    inputs: Iterable[In],
    /,
    *,
    run_at: datetime | None = None,
    delay: Duration | None = None,
    priority: int | None = None,
    on_duplicate: OnDuplicate | None = None,
    enqueued_by: str | None = None,
) -> Sequence[Enqueued]:
    """Enqueue *job* once per input; the same as that many calls, checked before any.

    One bad input refuses them all. Returns the handles in the order of the inputs.
    """
    target = _resolve(session)
    options = _Options(
        job,
        target,
        run_at=run_at,
        delay=delay,
        priority=priority,
        on_duplicate=on_duplicate,
        enqueued_by=enqueued_by,
    )
    pending = [options.pending(input_) for input_ in inputs]
    if pending:
        _add(target, *pending)
    return [p.handle for p in pending]


def write_jobs(session: Session | scoped_session[Any] | Connection, /) -> None:
    """Write the pending jobs of *session* now, in its transaction.

    Afterwards every handle knows its ``outcome``. The keys' locks are held from here
    to the commit.

    :raises DuplicateJobError: a job in mode ``error`` exists; the transaction stays
        usable and the other jobs are written.
    """
    target = _resolve(session)
    if isinstance(target, Connection):
        ledger.ledger_of(target).flush(target)
    else:
        stash.write_jobs(target)


def _resolve(
    session: object,
) -> Session | Connection:
    if isinstance(session, (Session, Connection)):
        return session
    if isinstance(session, scoped_session):
        found: Session = session()
        return found
    # Async doors are known by what they wrap, so that this works without greenlet.
    wrapped = getattr(session, "sync_session", None) or getattr(
        session, "sync_connection", None
    )
    if isinstance(wrapped, (Session, Connection)):
        return wrapped
    raise EnqueueArgumentError(
        "session",
        type(session).__qualname__,
        "is not a Session, a scoped_session or a Connection",
    )


def _add(target: Session | Connection, *pending: PendingJob) -> None:
    if isinstance(target, Connection):
        ledger.add(target, *pending)
    else:
        stash.add(target, *pending)


class _Options:
    """The options of one call, checked once for all its inputs."""

    def __init__(
        self,
        job: JobSpec[Any, Any],
        target: Session | Connection,
        *,
        run_at: datetime | None,
        delay: Duration | None,
        priority: int | None,
        on_duplicate: OnDuplicate | None,
        enqueued_by: str | None,
    ) -> None:
        self.job = _declared(job)
        self.run_at = _instant(run_at, delay)
        self.delay = (
            0.0
            if delay is None
            else parse_duration(delay, field="delay", zero=True).total_seconds()
        )
        self.priority = job.priority if priority is None else _priority(priority)
        self.mode: OnDuplicate = (
            job.on_duplicate if on_duplicate is None else _mode(on_duplicate)
        )
        self.enqueued_by = _enqueued_by(target, enqueued_by)
        self.traceparent = current_traceparent()

    def pending(self, input_: object) -> PendingJob:
        """Encode one input and compute its identity."""
        job = self.job
        text = job.input_codec.encode(input_)
        handle = Enqueued(
            uuid7(), job.name, job.tenant_of(input_), job.idempotency_key(input_)
        )
        return PendingJob(
            handle=handle,
            queue=job.queue,
            priority=self.priority,
            input=text,
            max_attempts=job.retry.attempts,
            mode=self.mode,
            run_at=self.run_at,
            delay=self.delay,
            enqueued_by=self.enqueued_by,
            traceparent=self.traceparent,
        )


def _declared(job: object) -> JobSpec[Any, Any]:
    if isinstance(job, JobSpec):
        return job
    raise EnqueueArgumentError("job", type(job).__qualname__, "is not a declared job")


def _instant(run_at: datetime | None, delay: Duration | None) -> datetime | None:
    if run_at is None:
        return None
    if delay is not None:
        raise EnqueueArgumentError("delay", delay, "cannot be given with run_at")
    if not isinstance(run_at, datetime):
        raise EnqueueArgumentError("run_at", run_at, "is not a datetime")
    if run_at.utcoffset() is None:
        raise EnqueueArgumentError(
            "run_at", run_at, "has no time zone: give an aware datetime"
        )
    return run_at


def _priority(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 9:
        raise EnqueueArgumentError("priority", value, "is not 0 (first) to 9 (last)")
    return value


def _mode(value: OnDuplicate) -> OnDuplicate:
    if value not in ON_DUPLICATE:
        raise EnqueueArgumentError(
            "on_duplicate", value, f"is none of {', '.join(sorted(ON_DUPLICATE))}"
        )
    return value


_PRINTABLE: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")


def _enqueued_by(target: Session | Connection, given: object) -> str | None:
    if given is None and isinstance(target, Session):
        # Not of a Connection: its info stays with the pool's next borrowers.
        given = target.info.get(ENQUEUED_BY)
    if given is None:
        return None
    if not isinstance(given, str) or not _PRINTABLE.fullmatch(given):
        raise EnqueueArgumentError("enqueued_by", given, "is not a printable string")
    return given[:MAX_ENQUEUED_BY]


def current_traceparent() -> str | None:
    """Return the W3C traceparent of the current span, if one is valid."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"


__all__ = ["enqueue", "enqueue_many", "write_jobs"]
