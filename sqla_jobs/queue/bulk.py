"""Changing many jobs: a bounded batch at a time, each in a transaction of its own.

The rows of a batch are locked in the order of ids, as every statement of ours locks
them, and what others hold is stepped over: no transaction waits for a batch while the
batch waits for it, and a batch is short. What the filter says is judged again on the
locked rows, so a job that a worker took or ended meanwhile is left alone. Whoever is
interrupted begins again: what is done no longer matches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never
from uuid import UUID

import attrs
from sqlalchemy import select

from sqla_jobs.dialects import dialect_of, job_connection
from sqla_jobs.models import Job
from sqla_jobs.queue import ledger
from sqla_jobs.queue.changes import Change, cancel_rows, discard_rows, retry_rows
from sqla_jobs.queue.control import checked_reason
from sqla_jobs.queue.turn import take_turn
from sqla_jobs.queue.wakeup import NEWS
from sqla_jobs.states import JobState

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from sqla_jobs.queue.selection import JobFilter

BATCH: Final = 500
"""Jobs in one transaction."""


@attrs.frozen
class Changed:
    """What one batch did."""

    count: int
    """Jobs changed: the number of rows that the guarded statement met."""
    stopping: int
    """Those of them that run, and were only asked to stop."""
    left: int
    """Jobs that matched and were left, because another transaction held their rows, or
    changed them first."""
    next: UUID | None
    """Where the next batch begins; None when all was looked at."""


def change_jobs(
    session: Session,
    change: Change,
    filters: JobFilter,
    /,
    *,
    reason: str | None = None,
    after: UUID | None = None,
    until: UUID | None = None,
    limit: int = BATCH,
) -> Changed:
    """Do *change* to the next *limit* jobs that *filters* choose, in the order of ids.

    Emits a bounded number of statements in the session's transaction, which should hold
    nothing else: its time-outs become short ones, and the rows stay locked until it
    ends. Workers are woken after the commit.

    :param reason: of a cancel, as :func:`.cancel_job` takes it.
    :param after: the ``next`` of the batch before.
    :param until: the last id that is looked at, so that jobs which come meanwhile do
        not keep the caller busy for ever.
    """
    text = checked_reason(reason)
    criteria = attrs.evolve(filters, open_to=change).criteria()
    connection = job_connection(session)
    take_turn(connection)
    page = select(Job.id).where(*criteria).order_by(Job.id).limit(limit)
    if after is not None:
        page = page.where(Job.id > after)
    if until is not None:
        page = page.where(Job.id <= until)
    seen = list(connection.scalars(page))
    if not seen:
        return Changed(0, 0, 0, None)
    # After the look, which may take long in a large table; before the first lock.
    dialect_of(connection).bound(connection)
    locked = connection.scalars(
        select(Job.id)
        .where(Job.id.in_(seen), *criteria)
        .order_by(Job.id)
        .with_for_update(skip_locked=True)
    )
    done = _change(connection, change, list(locked), text)
    following = seen[-1] if len(seen) == limit else None
    stopping = sum(state == JobState.RUNNING for state in done.values())
    return Changed(len(done), stopping, len(seen) - len(done), following)


def _change(
    connection: Connection, change: Change, ids: list[UUID], reason: str | None
) -> dict[UUID, str]:
    """Return what became of each job that was changed."""
    match change:
        case Change.CANCEL:
            ledger.ledger_of(connection).wakes(connection).add(NEWS)
            return cancel_rows(connection, ids, reason)
        case Change.DISCARD:
            return dict.fromkeys(discard_rows(connection, ids), "discarded")
        case Change.RETRY:
            queues = retry_rows(connection, ids)
            ledger.ledger_of(connection).wakes(connection).update(queues.values())
            return dict.fromkeys(queues, JobState.READY.value)
        case _:
            assert_never(change)
