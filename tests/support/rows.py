"""Rows written past the library, so that a test can start in any state."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, insert
from sqlalchemy.orm import Session

from sqla_jobs.models import Attempt, Job, JobBody, JobOutput, WorkerRow
from sqla_jobs.states import FINISHED, JobState

_numbers = itertools.count(1)

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
"""An instant for rows whose age does not matter."""


def add_job(
    session: Session | Connection, state: str = "ready", /, **values: Any
) -> UUID:
    """Insert a job in *state* with its body; return its id.

    ``input`` and ``output`` go to their own tables; all other *values* are columns.
    """
    number = next(_numbers)
    job_id: UUID = values.pop("id", None) or UUID(int=(1 << 80) + number)
    payload = values.pop("input", {"n": number})
    row: dict[str, Any] = {
        "id": job_id,
        "tenant": "",
        "name": "shop.work",
        "queue": "default",
        "key": f"key:{number}",
        "state": state,
        "priority": 5,
        "run_at": NOW,
        "max_attempts": 3,
        "created_at": NOW,
    }
    if state == JobState.RUNNING:
        row |= {"worker_id": uuid4(), "attempt": 1, "fence": 1, "attempted_at": NOW}
    if state in FINISHED:
        row |= {"finished_at": NOW + timedelta(seconds=1), "attempted_at": NOW}
        row |= {"attempt": 1, "fence": 1}
    output = values.pop("output", None)
    session.execute(insert(Job).values(row | values))
    session.execute(insert(JobBody).values(job_id=job_id, input=payload))
    if output is not None:
        fence = values.get("fence", 1)
        session.execute(
            insert(JobOutput).values(job_id=job_id, fence=fence, output=output)
        )
    return job_id


def add_attempt(
    session: Session | Connection, job_id: UUID, number: int, /, **values: Any
) -> None:
    """Insert the record of an ended attempt; its fence is its number."""
    row: dict[str, Any] = {
        "job_id": job_id,
        "fence": number,
        "number": number,
        "worker": "host-1:42",
        "started_at": NOW,
        "ended_at": NOW + timedelta(seconds=number),
        "outcome": "failed",
        "error_type": "ValueError",
        "error": f"attempt {number} failed",
    }
    session.execute(insert(Attempt).values(row | values))


def add_worker(session: Session | Connection, /, **values: Any) -> UUID:
    """Insert a worker whose lease ended at :data:`NOW`, unless *values* say else."""
    worker_id: UUID = values.pop("id", None) or uuid4()
    row: dict[str, Any] = {
        "id": worker_id,
        "lease_until": NOW,
        "started_at": NOW - timedelta(minutes=5),
        "host": "host-1",
        "pid": 42,
        "version": "0.1.0",
        "queues": {"default": 10},
    }
    session.execute(insert(WorkerRow).values(row | values))
    return worker_id
