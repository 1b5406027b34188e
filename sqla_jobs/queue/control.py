"""What people do to jobs and queues: cancel, retry, discard, pause, look up.

A verb on a job looks at it now, without a lock, and refuses what cannot be done. The
change itself is one guarded statement that runs among the last ones of the caller's
transaction, as an enqueue does: held any earlier, the job's row would be locked before
the caller's own rows, and a handler's commit locks them in the other order. The row
count is the answer, so two verbs (or a verb and a worker) that cross can never both
win: the later one raises from the commit, and nothing of its transaction is left.

The statements are Core constructs on the connection that keeps the jobs, so that they
obey ``schema_translate_map``. A mapped ``Job`` that was loaded earlier shows their
effect after the commit and ``session.refresh(job)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from uuid import UUID

import attrs
from sqlalchemy import Text, cast, select, update
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
from sqla_jobs.models import Job, JobOutput, QueueRow
from sqla_jobs.queue import ledger, stash
from sqla_jobs.queue.changes import (
    FROM,
    Change,
    cancel_rows,
    discard_rows,
    retry_rows,
)
from sqla_jobs.queue.wakeup import NEWS
from sqla_jobs.states import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from sqla_jobs.declare.job import JobSpec

In = TypeVar("In")
Out = TypeVar("Out")

AnySession: TypeAlias = Session | scoped_session[Any]
"""A Session of any class, or the proxy that Flask users have."""

MAX_REASON: Final = 1000
"""The longest reason of a cancel, in characters."""


# --- jobs ----------------------------------------------------------------------------


def cancel_job(
    session: AnySession, job_id: UUID, /, *, reason: str | None = None
) -> None:
    """Cancel *job_id*: at once when it waits, by asking when it runs.

    A ready or waiting job becomes cancelled and will not run. A running one keeps its
    worker and is asked to stop (``ctx.cancelled``), soon after the commit; what it returns or
    raises after that no longer leads to a retry. A pending rerun is dropped.

    Part of the caller's transaction, written by its last statements. Raises
    :exc:`.JobNotFoundError`, and :exc:`.JobNotCancellableError` naming the state when
    the job has finished: from this call, or from the commit when the job finishes in
    between.

    :param reason: kept with the job and shown to people; at most 1000 characters.
    """
    text = checked_reason(reason)
    plain = _plain(session)
    state = _look(plain, job_id, FROM[Change.CANCEL])
    if state not in FROM[Change.CANCEL]:
        raise JobNotCancellableError(job_id, state)
    stash.at_commit(plain, _Cancel(job_id, text))


@attrs.frozen
class _Cancel:
    """A cancel that waits for the end of its transaction."""

    job_id: UUID
    reason: str | None

    def __call__(self, connection: Connection) -> set[str]:
        """Lock and cancel the job; a worker that runs it is to learn of it."""
        cancel_now(connection, self.job_id, self.reason)
        return {NEWS}


def cancel_now(connection: Connection, job_id: UUID, reason: str | None) -> None:
    """Lock and cancel *job_id* on *connection*; see :func:`cancel_job`."""
    if not cancel_rows(connection, [job_id], reason):
        raise JobNotCancellableError(job_id, _state_now(connection, job_id))


def retry_job(session: AnySession, job_id: UUID, /) -> None:
    """Make the finished job *job_id* ready to run now, with its old input.

    It keeps its identity and its attempts so far (a success is recorded among them),
    gets at least one attempt more, and loses its output. The fence grows, so nobody who had the job before can write for it.

    Part of the caller's transaction, written by its last statements; workers are woken
    after the commit. Raises :exc:`.JobNotFoundError`, and :exc:`.JobNotRetryableError`
    naming the state when the job is not dead, cancelled or succeeded: from this call,
    or from the commit when somebody else is first.
    """
    plain = _plain(session)
    state = _look(plain, job_id, FROM[Change.RETRY])
    if state not in FROM[Change.RETRY]:
        raise JobNotRetryableError(job_id, state)
    stash.at_commit(plain, _Retry(job_id))


@attrs.frozen
class _Retry:
    """A retry that waits for the end of its transaction."""

    job_id: UUID

    def __call__(self, connection: Connection) -> set[str]:
        """Lock the job and make it ready; its queue is to be woken."""
        return {retry_now(connection, self.job_id)}


def retry_now(connection: Connection, job_id: UUID) -> str:
    """Lock *job_id* on *connection* and make it ready; return its queue, to wake it."""
    queues = retry_rows(connection, [job_id])
    if not queues:
        raise JobNotRetryableError(job_id, _state_now(connection, job_id))
    return queues[job_id]


def discard_job(session: AnySession, job_id: UUID, /) -> None:
    """Delete the finished job *job_id* with its input, output and attempts, for good.

    Its identity is free again. Part of the caller's transaction, written by its last
    statements. Raises :exc:`.JobNotFoundError`, and :exc:`.JobNotDiscardableError`
    naming the state when the job has not finished (cancel it first): from this call,
    or from the commit when somebody else is first.
    """
    plain = _plain(session)
    state = _look(plain, job_id, FROM[Change.DISCARD])
    if state not in FROM[Change.DISCARD]:
        raise JobNotDiscardableError(job_id, state)
    stash.at_commit(plain, _Discard(job_id))


@attrs.frozen
class _Discard:
    """A deletion that waits for the end of its transaction."""

    job_id: UUID

    def __call__(self, connection: Connection) -> set[str]:
        """Lock the job and delete it."""
        discard_now(connection, self.job_id)
        return set()


def discard_now(connection: Connection, job_id: UUID) -> None:
    """Lock *job_id* on *connection* and delete it; see :func:`discard_job`."""
    if not discard_rows(connection, [job_id]):
        raise JobNotDiscardableError(job_id, _state_now(connection, job_id))


def find_job(session: AnySession, spec: JobSpec[In, Any], input: In, /) -> Job | None:
    """Return the job that an enqueue of *input* would meet, or None.

    Looked up by identity: the tenant, the name and the key that *spec* derives from
    *input*. Writes what is pending first, as a query over our models does; the row is
    refreshed if the session holds it already.
    """
    plain = _plain(session)
    stash.write_jobs(plain)
    return plain.execute(
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

    Part of the caller's transaction; workers are told after the commit, and see it with
    their next heartbeat at the latest. Enqueues go on as before. Returns whether that changed anything: False when it was paused.
    """
    check_name(name, option="queue")
    connection = job_connection(_plain(session))
    # Untargeted, as everywhere: a targeted one fails during REINDEX CONCURRENTLY.
    connection.execute(insert(QueueRow).values(name=name).on_conflict_do_nothing())
    paused = connection.execute(
        update(QueueRow)
        .where(QueueRow.name == name, QueueRow.paused_at.is_(None))
        .values(paused_at=clock.now())
    )
    if paused.rowcount == 0:
        return False
    ledger.ledger_of(connection).wakes(connection).add(NEWS)
    return True


def resume_queue(session: AnySession, name: str) -> bool:
    """Let workers claim jobs of queue *name* again.

    Part of the caller's transaction; workers are woken after the commit. Returns
    whether that changed anything: False when the queue was not paused.
    """
    connection = job_connection(_plain(session))
    resumed = connection.execute(
        update(QueueRow)
        .where(QueueRow.name == name, QueueRow.paused_at.is_not(None))
        .values(paused_at=None)
    )
    if resumed.rowcount == 0:
        return False
    ledger.ledger_of(connection).wakes(connection).update((name, NEWS))
    return True


# --- shared --------------------------------------------------------------------------


def _plain(session: AnySession) -> Session:
    if isinstance(session, scoped_session):
        plain: Session = session()
        return plain
    return session


def checked_reason(reason: str | None) -> str | None:
    """Return *reason*, or raise :exc:`.PayloadError` when it cannot be stored."""
    if reason is None:
        return None
    bad = bad_character(reason)
    if bad is not None:
        raise PayloadError("reason", f"contains {bad}")
    if len(reason) > MAX_REASON:
        raise PayloadError("reason", f"is longer than {MAX_REASON} characters")
    return reason


def _look(session: Session, job_id: UUID, wanted: Sequence[str]) -> str:
    """Return the state of *job_id* as this transaction sees it, without a lock."""
    # On the connection that keeps the jobs: a replica may not have seen this one yet.
    connection = job_connection(session)
    query = select(Job.state).where(Job.id == job_id)
    state = connection.scalar(query)
    if state not in wanted and stash.has_pending(session):
        # What the session has not written yet may be this very job. Only then: what
        # is written early keeps its locks until the commit.
        stash.write_jobs(session)
        state = connection.scalar(query)
    if state is None:
        raise JobNotFoundError(job_id)
    return state


def _state_now(connection: Connection, job_id: UUID) -> str:
    """Return the state that made a guarded statement match nothing."""
    state = connection.scalar(select(Job.state).where(Job.id == job_id))
    if state is None:
        raise JobNotFoundError(job_id)
    return state
