"""The changes that people make to jobs, each one guarded statement for any number of ids.

The caller says which rows; the guard on their state is here. What comes back is what was
changed: an id that does not come back was in another state by then.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from sqlalchemy import and_, case, delete, exists, insert, literal, select, update

from sqla_jobs import clock
from sqla_jobs.models import Attempt, Job, JobBody, JobOutput
from sqla_jobs.states import CLAIMABLE, FINISHED, AttemptOutcome, JobState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import ColumnElement, Connection


class Change(StrEnum):
    """What people do to jobs."""

    CANCEL = "cancel"
    RETRY = "retry"
    DISCARD = "discard"


_CLAIMABLE: Final = sorted(state.value for state in CLAIMABLE)

FROM: Final[Mapping[Change, Sequence[str]]] = {
    Change.CANCEL: sorted({state.value for state in JobState if state not in FINISHED}),
    Change.RETRY: sorted(state.value for state in FINISHED),
    Change.DISCARD: sorted(state.value for state in FINISHED),
}
"""The states in which each change can be made."""


def cancel_rows(
    connection: Connection, ids: Sequence[UUID], reason: str | None
) -> dict[UUID, str]:
    """Cancel the unfinished jobs among *ids*; return the state of each of those now.

    It is ``running`` where an attempt was asked to stop.
    """
    # The fence stays: a co-operative cancel must still be settled by its attempt.
    waits = Job.state.in_(_CLAIMABLE)
    statement = (
        update(Job)
        .where(Job.id.in_(ids), Job.state.in_(FROM[Change.CANCEL]))
        .values(
            state=case((waits, JobState.CANCELLED.value), else_=Job.state),
            finished_at=case((waits, clock.now()), else_=None),
            cancel_requested_at=case(
                (Job.cancel_requested_at.is_(None), clock.now()),
                else_=Job.cancel_requested_at,
            ),
            cancel_reason=Job.cancel_reason if reason is None else reason,
            rerun=False,
            rerun_run_at=None,
        )
        .returning(Job.id, Job.state)
    )
    changed = {row.id: row.state for row in connection.execute(statement)}
    if changed:
        # Under the jobs' locks, so that it cannot meet the settle that starts a rerun.
        connection.execute(
            update(JobBody)
            .where(JobBody.job_id.in_(list(changed)), JobBody.rerun_input.is_not(None))
            .values(rerun_input=None)
        )
    return changed


def retry_rows(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, str]:
    """Make the finished jobs among *ids* ready to run now; return the queue of each.

    A success among them is recorded as an attempt: until now the job's row alone told
    of it, and the row forgets it here.
    """
    finished = and_(Job.id.in_(ids), Job.state.in_(FROM[Change.RETRY]))
    # Locked before they are read, else the record could tell of an older success.
    locked = select(Job.id).where(finished).order_by(Job.id).with_for_update()
    ids = list(connection.scalars(locked))
    if not ids:
        return {}
    _record_successes(connection, ids)
    more = Job.attempt + 1
    rows = connection.execute(
        update(Job)
        .where(finished)
        .values(
            state=JobState.READY.value,
            fence=Job.fence + 1,
            run_at=clock.now(),
            max_attempts=case((Job.max_attempts < more, more), else_=Job.max_attempts),
            interruptions=0,
            deadline_at=None,
            finished_at=None,
            cancel_requested_at=None,
            cancel_reason=None,
        )
        .returning(Job.id, Job.queue)
    )
    changed = {row.id: row.queue for row in rows}
    connection.execute(delete(JobOutput).where(JobOutput.job_id.in_(list(changed))))
    return changed


def _record_successes(connection: Connection, ids: Sequence[UUID]) -> None:
    recorded = exists().where(Attempt.job_id == Job.id, Attempt.fence == Job.fence)
    columns = ("job_id", "fence", "number", "started_at", "ended_at", "outcome")
    ended = select(
        *(Job.id, Job.fence, Job.attempt, Job.attempted_at, Job.finished_at),
        literal(AttemptOutcome.SUCCEEDED.value),
    ).where(Job.id.in_(ids), Job.state == JobState.SUCCEEDED.value, ~recorded)
    connection.execute(insert(Attempt).from_select(columns, ended))


def discard_rows(connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Delete the finished jobs among *ids* with all that is theirs; return which."""
    finished = Job.state.in_(FROM[Change.DISCARD])
    statement = delete(Job).where(Job.id.in_(ids), finished).returning(Job.id)
    gone = set(connection.scalars(statement))
    delete_children(connection, sorted(gone))
    return gone


def delete_children(connection: Connection, job_ids: Sequence[UUID]) -> None:
    """Delete what belongs to *job_ids*, whose rows this transaction has deleted."""
    for child in (JobBody, JobOutput, Attempt):
        connection.execute(delete(child).where(child.job_id.in_(job_ids)))


def possible(change: Change) -> ColumnElement[bool]:
    """Return the condition that *change* can be made, and was not asked for before."""
    states = Job.state.in_(FROM[change])
    if change is Change.CANCEL:
        return and_(states, Job.cancel_requested_at.is_(None))
    return states
