"""JobSession: the Session with the verbs of the queue; each one forwarded call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from sqla_jobs.models import Base
from sqla_jobs.queue import enqueue as verbs
from sqla_jobs.queue import ledger, stash

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from sqlalchemy.orm import ORMExecuteState, SessionTransaction

    from sqla_jobs.declare.duration import Duration
    from sqla_jobs.declare.job import In, JobSpec, OnDuplicate
    from sqla_jobs.queue.pending import Enqueued


class JobSession(Session):
    """A Session whose transaction also carries jobs.

    Use it as ``class_`` of a sessionmaker. A query over the library's models writes
    pending jobs first, as autoflush does for pending rows.
    """

    def enqueue(
        self,
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
        """Enqueue *job* in this transaction; see :func:`sqla_jobs.enqueue`."""
        return verbs.enqueue(
            self,
            job,
            input,
            run_at=run_at,
            delay=delay,
            priority=priority,
            on_duplicate=on_duplicate,
            enqueued_by=enqueued_by,
        )

    def enqueue_many(
        self,
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
        """Enqueue *job* once per input; see :func:`sqla_jobs.enqueue_many`."""
        return verbs.enqueue_many(
            self,
            job,
            inputs,
            run_at=run_at,
            delay=delay,
            priority=priority,
            on_duplicate=on_duplicate,
            enqueued_by=enqueued_by,
        )

    def write_jobs(self) -> None:
        """Write pending jobs now, in this transaction; see :func:`.write_jobs`."""
        verbs.write_jobs(self)


@event.listens_for(JobSession, "after_begin")
def _expect_jobs(
    session: JobSession,  # noqa: ARG001 - SQLAlchemy's signature
    transaction: SessionTransaction,  # noqa: ARG001 - SQLAlchemy's signature
    connection: Connection,
) -> None:
    ledger.expect_jobs(connection)


@event.listens_for(JobSession, "after_transaction_create")
def _expect_jobs_of_joined(
    session: JobSession,
    transaction: SessionTransaction,  # noqa: ARG001 - SQLAlchemy's signature
) -> None:
    # A session that joins by a savepoint begins it before after_begin tells us.
    if isinstance(session.bind, Connection):
        ledger.expect_jobs(session.bind)


@event.listens_for(JobSession, "do_orm_execute")
def _write_before_query(state: ORMExecuteState) -> None:
    if any(issubclass(m.class_, Base) for m in state.all_mappers):
        stash.write_jobs(state.session)
