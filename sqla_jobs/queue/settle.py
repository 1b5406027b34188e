"""Settle: end attempts, in one fenced statement for a whole batch.

Every row is matched by ``(id, fence, worker_id)``; ids that did not come back belong to
somebody else by now, or are locked for a moment.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, assert_never
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from sqla_jobs.dialects import SettleRow, dialect_of, job_connection
from sqla_jobs.models import Attempt, Job
from sqla_jobs.queue.outcome import (
    Cancelled,
    Dead,
    Interrupted,
    Released,
    Retry,
    Settlement,
    Snooze,
    Succeeded,
)
from sqla_jobs.states import AttemptOutcome, JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

LOCK_NOT_AVAILABLE = "55P03"


class Verdict(Enum):
    """What became of one settlement."""

    ACCEPTED = "accepted"
    STALE = "stale"
    """The attempt has lost its job; the outcome must be dropped."""
    BUSY = "busy"
    """Somebody holds the row; try again."""


def settle(
    session: Session, worker_id: str, settlements: Sequence[Settlement], *, worker: str
) -> set[str]:
    """Write *settlements* in the session's transaction; return the accepted job ids.

    Frees nothing that is not this worker's, honours cancel requests (a retry becomes
    ``cancelled``) and reruns that were asked for meanwhile. Rows that others hold are
    stepped over: try those alone with :func:`settle_alone`.

    :param worker: the worker's host and process, for the attempt's history.
    """
    connection = job_connection(session)
    rows = [_row(s) for s in settlements]
    return dialect_of(connection).settle(
        connection, worker_id=worker_id, worker=worker, rows=rows, wait=False
    )


def settle_alone(
    session: Session,
    worker_id: str,
    settlement: Settlement,
    *,
    worker: str,
    patience: str = "250ms",
) -> Verdict:
    """Write one settlement, waiting at most *patience* for its row.

    Must run in a transaction (not in autocommit): its time-out is local to it. After
    ``BUSY`` that transaction has to be rolled back.
    """
    connection = job_connection(session)
    dialect = dialect_of(connection)
    if dialect.skip_locked:
        connection.execute(
            text("select set_config('lock_timeout', :limit, true)"), {"limit": patience}
        )
    try:
        accepted = dialect.settle(
            connection,
            worker_id=worker_id,
            worker=worker,
            rows=[_row(settlement)],
            wait=True,
        )
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == LOCK_NOT_AVAILABLE:
            return Verdict.BUSY
        raise
    return Verdict.ACCEPTED if accepted else Verdict.STALE


def was_settled(session: Session, job_id: str, fence: int, worker_id: str) -> Verdict:
    """Tell whose a job is after a settle whose answer was lost.

    ``ACCEPTED``: it was written, also when the job has gone on since: its history says
    so. ``BUSY``: it was not, the attempt still owns the job. ``STALE``: a rescue came
    first, or the job is gone; an attempt that a rescue ended as timed out or cancelled
    did end so, whoever wrote it down, and counts as accepted.
    """
    id_ = UUID(job_id)
    row = session.execute(
        select(Job.fence, Job.state, Job.worker_id).where(Job.id == id_)
    ).one_or_none()
    if row is None:
        return Verdict.STALE
    if row.fence == fence:
        if row.state != JobState.RUNNING:
            return Verdict.ACCEPTED
        return Verdict.BUSY if str(row.worker_id) == worker_id else Verdict.STALE
    # No other attempt ever had this fence.
    recorded = session.scalar(
        select(Attempt.outcome).where(Attempt.job_id == id_, Attempt.fence == fence)
    )
    gone = {None, AttemptOutcome.LOST}
    return Verdict.STALE if recorded in gone else Verdict.ACCEPTED


def _row(settlement: Settlement) -> SettleRow:
    id_, fence, number = settlement.job_id, settlement.fence, settlement.attempt
    outcome = settlement.outcome
    match outcome:
        case Succeeded(output):
            return SettleRow(id_, fence, number, "succeeded", output=output)
        case Retry(delay, type_, error, timed_out):
            return SettleRow(
                id_,
                fence,
                number,
                "retry",
                delay=delay.total_seconds(),
                error_type=type_,
                error=error,
                timed_out=timed_out,
            )
        case Dead(type_, error, timed_out):
            return SettleRow(
                id_,
                fence,
                number,
                "dead",
                error_type=type_,
                error=error,
                timed_out=timed_out,
            )
        case Snooze(delay):
            return SettleRow(id_, fence, number, "snooze", delay=delay.total_seconds())
        case Cancelled(reason):
            return SettleRow(id_, fence, number, "cancelled", error=reason)
        case Interrupted(reason):
            return SettleRow(id_, fence, number, "interrupted", error=reason)
        case Released(delay):
            return SettleRow(
                id_, fence, number, "released", delay=delay.total_seconds()
            )
        case _:
            assert_never(outcome)
