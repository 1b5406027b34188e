"""The workers: who lives, who does not, and what they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sqlalchemy import literal_column, select

from sqla_jobs import clock
from sqla_jobs.inspect.results import COUNT_LIMIT, RunningJob, WorkerStats
from sqla_jobs.models import Job, WorkerRow

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy.orm import Session

MAX_WORKERS: Final = 1000
MAX_JOBS_SHOWN: Final = 20


def workers(session: Session) -> list[WorkerStats]:
    """Return the workers and what they run, the newest start first.

    A worker whose lease ran out is shown until its row is removed. Emits two SELECTs,
    bounded to 1000 workers and 10,001 running jobs.
    """
    rows = session.execute(
        select(
            *(WorkerRow.id, WorkerRow.host, WorkerRow.pid, WorkerRow.version),
            *(WorkerRow.queues, WorkerRow.started_at, WorkerRow.lease_until),
            *(WorkerRow.listening, WorkerRow.stuck),
            clock.now().label("now"),
        )
        .order_by(WorkerRow.started_at.desc(), WorkerRow.id)
        .limit(MAX_WORKERS)
    ).all()
    running = _running(session)
    return [
        WorkerStats(
            id=row.id,
            host=row.host,
            pid=row.pid,
            version=row.version,
            queues=rooms(row.queues),
            alive=row.lease_until > row.now,
            started_at=row.started_at,
            lease_until=row.lease_until,
            lease_left=row.lease_until - row.now,
            listening=row.listening,
            stuck=row.stuck or 0,
            running=len(running[row.id]),
            jobs=running[row.id][:MAX_JOBS_SHOWN],
        )
        for row in rows
    ]


def rooms(stored: object) -> dict[str, int]:
    """Return the queues that a worker's row names; a row changed by hand has none."""
    if not isinstance(stored, Mapping):
        return {}
    return {str(name): room for name, room in stored.items() if isinstance(room, int)}


def _running(session: Session) -> defaultdict[UUID | None, list[RunningJob]]:
    """Return what each worker runs, the longest first."""
    fields = (Job.id, Job.name, Job.queue, Job.attempt)
    rows = session.execute(
        select(*fields, Job.attempted_at, Job.deadline_at, Job.worker_id)
        # A literal, so that the partial index on running jobs is used.
        .where(Job.state == literal_column("'running'"))
        .order_by(Job.attempted_at, Job.id)
        .limit(COUNT_LIMIT)
    )
    found: defaultdict[UUID | None, list[RunningJob]] = defaultdict(list)
    for row in rows:
        known = row._asdict()
        found[known.pop("worker_id")].append(RunningJob(**known))
    return found
