"""What people do to jobs and queues: cancel, retry, discard, pause, look up.

Every verb is one guarded statement in the caller's transaction; its row count is the
answer, so two verbs (or a verb and a worker) that cross can never both win. The guard
stands in the UPDATE itself: PostgreSQL evaluates it again on the newest version of a
row that it had to wait for.

The statements are Core constructs on the connection that keeps the jobs, so that they
obey ``schema_translate_map`` and can also be run by a commit listener. A mapped ``Job``
that was loaded earlier shows their effect after ``session.refresh(job)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from sqlalchemy import Text, case, cast, delete, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, scoped_session

from sqla_jobs import clock
from sqla_jobs.declare.text import bad_character, check_name
from sqla_jobs.dialects.base import job_connection
from sqla_jobs.exc import (
    JobNotCancellableError,
    JobNotDiscardableError,
    JobNotFoundError,
    JobNotRetryableError,
    PayloadError,
)
from sqla_jobs.models import Attempt, Job, JobBody, JobOutput, QueueRow
from sqla_jobs.states import CLAIMABLE, FINISHED, JobState

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from sqla_jobs.declare.job import JobSpec

In = TypeVar("In")
Out = TypeVar("Out")

AnySession: TypeAlias = Session | scoped_session[Any]
"""A Session of any class, or the proxy that Flask users have."""

MAX_REASON: Final = 1000
"""The longest reason of a cancel, in characters."""

_CLAIMABLE: Final = sorted(state.value for state in CLAIMABLE)
_FINISHED: Final = sorted(state.value for state in FINISHED)


# --- jobs ----------------------------------------------------------------------------


def cancel_job(
    session: AnySession, job_id: UUID, /, *, reason: str | None = None
) -> None:
    """Cancel *job_id*: at once when it waits, by asking when it runs.

    A ready or waiting job becomes cancelled and will not run. A running one keeps its
    worker and is asked to stop (``ctx.cancelled``, the heartbeat); what it returns or
    raises after that no longer leads to a retry. A pending rerun is dropped.

    Part of the caller's transaction. Raises :exc:`.JobNotFoundError`, and
    :exc:`.JobNotCancellableError` naming the state when the job has finished.

    :param reason: kept with the job and shown to people; at most 1000 characters.
    """
    text = _reason(reason)
    connection = _connection(session)
    state = _state_now(connection, job_id)
    if state in _FINISHED:
        raise JobNotCancellableError(job_id, state)
    cancel_now(connection, job_id, text)


def cancel_now(connection: Connection, job_id: UUID, reason: str | None) -> None:
    """Lock and cancel *job_id* on *connection*; see :func:`cancel_job`."""
    # The fence stays: a co-operative cancel must still be settled by its attempt.
    waits = Job.state.in_(_CLAIMABLE)
    changed = connection.execute(
        update(Job)
        .where(Job.id == job_id, Job.state.in_([*_CLAIMABLE, JobState.RUNNING.value]))
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
    )
    if changed.rowcount == 0:
        raise JobNotCancellableError(job_id, _state_now(connection, job_id))
    # Under the job's lock, so that it cannot meet the settle that starts the rerun.
    connection.execute(
        update(JobBody)
        .where(JobBody.job_id == job_id, JobBody.rerun_input.is_not(None))
        .values(rerun_input=None)
    )


def retry_job(session: AnySession, job_id: UUID, /) -> None:
    """Make the finished job *job_id* ready to run now, with its old input.

    It keeps its identity and its attempts so far, gets at least one attempt more, and
    loses its output. The fence grows, so nobody who had the job before can write for it.

    Part of the caller's transaction; a worker sees it after the commit. Raises
    :exc:`.JobNotFoundError`, and :exc:`.JobNotRetryableError` naming the state when
    the job is not dead, cancelled or succeeded.
    """
    connection = _connection(session)
    state = _state_now(connection, job_id)
    if state not in _FINISHED:
        raise JobNotRetryableError(job_id, state)
    retry_now(connection, job_id)


def retry_now(connection: Connection, job_id: UUID) -> str:
    """Lock *job_id* on *connection* and make it ready; return its queue, to wake it."""
    more = Job.attempt + 1
    queue: str | None = connection.execute(
        update(Job)
        .where(Job.id == job_id, Job.state.in_(_FINISHED))
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
        .returning(Job.queue)
    ).scalar_one_or_none()
    if queue is None:
        raise JobNotRetryableError(job_id, _state_now(connection, job_id))
    connection.execute(delete(JobOutput).where(JobOutput.job_id == job_id))
    return queue


def discard_job(session: AnySession, job_id: UUID, /) -> None:
    """Delete the finished job *job_id* with its input, output and attempts, for good.

    Its identity is free again. Part of the caller's transaction. Raises
    :exc:`.JobNotFoundError`, and :exc:`.JobNotDiscardableError` naming the state when
    the job has not finished: cancel it first.
    """
    connection = _connection(session)
    state = _state_now(connection, job_id)
    if state not in _FINISHED:
        raise JobNotDiscardableError(job_id, state)
    discard_now(connection, job_id)


def discard_now(connection: Connection, job_id: UUID) -> None:
    """Lock *job_id* on *connection* and delete it; see :func:`discard_job`."""
    gone = connection.execute(
        delete(Job).where(Job.id == job_id, Job.state.in_(_FINISHED))
    )
    if gone.rowcount == 0:
        raise JobNotDiscardableError(job_id, _state_now(connection, job_id))
    delete_children(connection, [job_id])


def delete_children(connection: Connection, job_ids: list[UUID]) -> None:
    """Delete what belongs to *job_ids*, whose rows this transaction has deleted."""
    for child in (JobBody, JobOutput, Attempt):
        connection.execute(delete(child).where(child.job_id.in_(job_ids)))


def find_job(session: AnySession, spec: JobSpec[In, Any], input: In, /) -> Job | None:
    """Return the job that an enqueue of *input* would meet, or None.

    Looked up by identity: the tenant, the name and the key that *spec* derives from
    *input*. Reads only; the row is refreshed if the session holds it already.
    """
    return session.execute(
        select(Job).where(
            Job.tenant == spec.tenant_of(input),
            Job.name == spec.name,
            Job.key == spec.idempotency_key(input),
        ),
        # Our statements bypass the ORM: an instance loaded before may be out of date.
        execution_options={"populate_existing": True},
    ).scalar_one_or_none()


def job_output(
    session: AnySession, spec: JobSpec[Any, Out], job_id: UUID, /
) -> Out | None:
    """Return what *job_id* returned, decoded as the output of *spec*.

    None when the job returned None, has not succeeded (yet), or does not exist. Reads
    only. Raises :exc:`.PayloadError` when the job is not one of *spec*, or its stored
    output does not fit the declared type.
    """
    row = session.execute(
        select(Job.name, cast(JobOutput.output, Text))
        .join(JobOutput, JobOutput.job_id == Job.id)
        .where(Job.id == job_id, Job.state == JobState.SUCCEEDED.value)
    ).one_or_none()
    if row is None:
        return None
    name, text = row
    if name != spec.name:
        raise PayloadError("output", f"job {job_id} is a {name!r}, not a {spec.name!r}")
    output: Out = spec.output_codec.decode(text)
    return output


# --- queues --------------------------------------------------------------------------


def pause_queue(session: AnySession, name: str) -> bool:
    """Stop workers from claiming jobs of queue *name*; what runs goes on.

    Part of the caller's transaction; workers see it with their next heartbeat. Enqueues
    go on as before. Returns whether that changed anything: False when it was paused.
    """
    check_name(name, option="queue")
    connection = _connection(session)
    # Untargeted, as everywhere: a targeted one fails during REINDEX CONCURRENTLY.
    connection.execute(insert(QueueRow).values(name=name).on_conflict_do_nothing())
    paused = connection.execute(
        update(QueueRow)
        .where(QueueRow.name == name, QueueRow.paused_at.is_(None))
        .values(paused_at=clock.now())
    )
    return paused.rowcount == 1


def resume_queue(session: AnySession, name: str) -> bool:
    """Let workers claim jobs of queue *name* again.

    Part of the caller's transaction. Returns whether that changed anything: False when
    the queue was not paused.
    """
    resumed = _connection(session).execute(
        update(QueueRow)
        .where(QueueRow.name == name, QueueRow.paused_at.is_not(None))
        .values(paused_at=None)
    )
    return resumed.rowcount == 1


# --- shared --------------------------------------------------------------------------


def _connection(session: AnySession) -> Connection:
    # Reads, too, go where jobs are written: a replica may not have seen the job yet.
    plain: Session = session() if isinstance(session, scoped_session) else session
    return job_connection(plain)


def _reason(reason: str | None) -> str | None:
    if reason is None:
        return None
    bad = bad_character(reason)
    if bad is not None:
        raise PayloadError("reason", f"contains {bad}")
    if len(reason) > MAX_REASON:
        raise PayloadError("reason", f"is longer than {MAX_REASON} characters")
    return reason


def _state_now(connection: Connection, job_id: UUID) -> str:
    state = connection.scalar(select(Job.state).where(Job.id == job_id))
    if state is None:
        raise JobNotFoundError(job_id)
    return state
