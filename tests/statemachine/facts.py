"""What the database holds, and what must be true of any two looks at it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import attrs
from sqlalchemy import Connection, Table, select, text

from sqla_jobs import models
from sqla_jobs.models import Attempt, JobBody, JobOutput
from tests.statemachine.model import FINISHED, RUNNING, Job, Past

_JOB = cast("Table", models.Job.__table__)
ROWS = (
    select(
        *_JOB.c,
        JobBody.input,
        JobBody.rerun_input,
        JobBody.job_id.label("body"),
        JobOutput.output,
    )
    .outerjoin(JobBody, JobBody.job_id == _JOB.c.id)
    .outerjoin(JobOutput, JobOutput.job_id == _JOB.c.id)
)
PAST = select(cast("Table", Attempt.__table__)).order_by(Attempt.job_id, Attempt.fence)
STRAYS = text(
    """
    select count(*) from (
        select job_id from sqla_job_body union all
        select job_id from sqla_job_output union all
        select job_id from sqla_attempt) child
     where job_id not in (select id from sqla_job)
    """
)


def _utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return _utc(value)
    return str(value) if isinstance(value, UUID) else value


@attrs.frozen
class Facts:
    """One look at everything."""

    rows: dict[UUID, dict[str, Any]]
    past: dict[UUID, list[Past]]
    strays: int


def look(connection: Connection) -> Facts:
    """Read all jobs with what belongs to them."""
    past: dict[UUID, list[Past]] = {}
    for a in connection.execute(PAST):
        started, ended = _utc(a.started_at), a.ended_at.astimezone(UTC)
        worker = a.worker_id and str(a.worker_id)
        one = Past(a.fence, a.number, worker, started, ended, a.outcome)
        past.setdefault(a.job_id, []).append(one)
    rows = {
        row.id: {name: _plain(value) for name, value in row._mapping.items()}
        for row in connection.execute(ROWS)
    }
    return Facts(rows, past, connection.execute(STRAYS).scalar_one())


def expected(job: Job) -> dict[str, Any]:
    """Return the row that the model's *job* has."""
    rerun = job.rerun
    return {
        "id": str(job.id),
        "tenant": "",
        "name": job.name,
        "key": job.key,
        "queue": job.queue,
        "state": job.state,
        "priority": job.priority,
        "run_at": job.run_at,
        "lane": None,
        "cap_keys": None,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "interruptions": job.interruptions,
        "fence": job.fence,
        "worker_id": job.worker,
        "attempted_at": job.attempted_at,
        "deadline_at": job.deadline_at,
        "cancel_requested_at": job.cancel_requested_at,
        "cancel_reason": job.cancel_reason,
        "rerun": rerun is not None,
        "rerun_run_at": rerun and rerun.run_at,
        "traceparent": None,
        "enqueued_by": None,
        "created_at": job.created_at,
        "finished_at": job.finished_at,
        "body": str(job.id),
        "input": job.input,
        "rerun_input": rerun and rerun.input,
        "output": job.output,
    }


def check_step(step: str, before: Facts, after: Facts) -> None:
    """Check what no step may do, whatever the model thinks of it."""
    assert after.strays == 0, "something is left of a job that is gone"
    identities = {(r["tenant"], r["name"], r["key"]) for r in after.rows.values()}
    assert len(identities) == len(after.rows)
    for job_id, old in before.rows.items():
        new = after.rows.get(job_id)
        if new is None:
            assert step in {"discard", "prune"}, f"{step} lost a job"
            assert old["state"] in FINISHED
            continue
        _check_fence(step, old, new)
        _check_rerun(step, old, new)
        history = before.past.get(job_id, [])
        assert after.past.get(job_id, [])[: len(history)] == history
    for row in after.rows.values():
        assert (row["state"] == RUNNING) == (row["worker_id"] is not None)
        assert (row["state"] in FINISHED) == (row["finished_at"] is not None)


def _check_fence(step: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    assert new["fence"] >= old["fence"], f"{step}: the fence fell"
    takes_over = new["worker_id"] not in {None, old["worker_id"]}
    if takes_over or (old["state"] in FINISHED and new != old):
        assert new["fence"] > old["fence"], f"{step}: changed under the same fence"


def _check_rerun(step: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    if not old["rerun"] or step in {"cancel", "enqueue", "commit"}:
        return  # Dropped by the cancel, or replaced by a newer input.
    pending, starts = new["rerun"], new["input"] == old["rerun_input"]
    assert pending or (new["state"] == "ready" and starts), f"{step} lost a rerun"
    if pending:
        assert new["rerun_input"] == old["rerun_input"]
