"""AsyncJobSession: the async door; each method one forwarded call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncSession

from sqla_jobs.queue import enqueue as verbs
from sqla_jobs.session import JobSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from sqla_jobs.declare.duration import Duration
    from sqla_jobs.declare.job import In, JobSpec, OnDuplicate
    from sqla_jobs.queue.pending import Enqueued


class AsyncJobSession(AsyncSession):
    """An AsyncSession whose transaction also carries jobs.

    ``enqueue`` does no I/O and is not awaited: a forgotten ``await`` would lose a job.
    """

    sync_session_class = JobSession

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
            self.sync_session,
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
            self.sync_session,
            job,
            inputs,
            run_at=run_at,
            delay=delay,
            priority=priority,
            on_duplicate=on_duplicate,
            enqueued_by=enqueued_by,
        )

    async def write_jobs(self) -> None:
        """Write pending jobs now, in this transaction; see :func:`.write_jobs`."""
        await self.run_sync(verbs.write_jobs)
