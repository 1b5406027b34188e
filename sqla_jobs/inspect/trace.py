"""One job with all that happened to it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Text, cast, select

from sqla_jobs import clock
from sqla_jobs.declare.job import JobSpec
from sqla_jobs.exc import JobNotFoundError
from sqla_jobs.inspect.listing import SUMMARY, facts
from sqla_jobs.inspect.reading import decoded
from sqla_jobs.inspect.results import AttemptTrace, JobTrace
from sqla_jobs.models import Attempt, Job, JobBody, JobOutput, WorkerRow
from sqla_jobs.states import CLAIMABLE, JobState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Row
    from sqlalchemy.orm import Session

    from sqla_jobs.declare.payload import Codec
    from sqla_jobs.declare.registry import Jobs

UNDECLARED: Final = (
    "which of its fields are sensitive is known to the declaration only: give the "
    "registry that declares the job"
)
MAX_ATTEMPTS_SHOWN: Final = 100
MAX_DELAYS_SHOWN: Final = 10


def job(
    session: Session,
    job_id: UUID,
    /,
    *,
    registry: Jobs | JobSpec[Any, Any] | None = None,
) -> JobTrace:
    """Return the trace of *job_id*: state, attempts, times, errors, who asked for it.

    Input and output are shown with their ``Sensitive`` fields masked, which takes the
    declaration: without *registry*, or when it does not declare the job, they are not
    even loaded. Of many attempts the last hundred are shown. Emits three SELECTs;
    raises :exc:`.JobNotFoundError`, and :exc:`.RowUnreadableError` when somebody wrote
    what cannot be decoded.
    """
    rows = decoded(
        session,
        job_id,
        select(
            *SUMMARY,
            *(Job.fence, Job.interruptions, Job.deadline_at, Job.cancel_reason),
            Job.rerun,
            WorkerRow.host,
            WorkerRow.pid,
            clock.now().label("seen_at"),
        )
        .outerjoin(WorkerRow, WorkerRow.id == Job.worker_id)
        .where(Job.id == job_id),
    )
    if not rows:
        raise JobNotFoundError(job_id)
    [row] = rows
    known = facts(row)
    host, pid = known.pop("host"), known.pop("pid")
    spec = _spec_of(row.name, registry)
    worker = None if host is None else f"{host}:{pid}"
    return JobTrace(
        **known,
        **_payloads(session, job_id, spec),
        attempts=_attempts(session, row, worker),
        next_run_in=_wait(row),
        retry_delays=_delays(row, spec),
    )


def _spec_of(
    name: str, registry: Jobs | JobSpec[Any, Any] | None
) -> JobSpec[Any, Any] | None:
    if registry is None:
        return None
    if isinstance(registry, JobSpec):
        return registry if registry.name == name else None
    return registry.get(name)


def _attempts(
    session: Session, row: Row[*tuple[Any, ...]], worker: str | None
) -> Sequence[AttemptTrace]:
    """Return the recorded attempts, and the one without a record, in order."""
    newest = decoded(
        session,
        row.id,
        # Columns, not entities: what the session loaded before may be out of date.
        select(
            *(Attempt.fence, Attempt.number, Attempt.outcome, Attempt.worker),
            *(Attempt.started_at, Attempt.ended_at, Attempt.error_type, Attempt.error),
        )
        .where(Attempt.job_id == row.id)
        .order_by(Attempt.fence.desc())
        .limit(MAX_ATTEMPTS_SHOWN),
    )
    recorded = [
        AttemptTrace(
            number=attempt.number,
            outcome=attempt.outcome,
            worker=attempt.worker,
            started_at=attempt.started_at,
            ended_at=attempt.ended_at,
            error_type=attempt.error_type,
            error=attempt.error,
        )
        for attempt in reversed(newest)
    ]
    # An attempt that runs, or that simply succeeded, is told by the job's row alone.
    if row.state not in {JobState.RUNNING, JobState.SUCCEEDED} or (
        newest and newest[0].fence >= row.fence
    ):
        return recorded
    current = AttemptTrace(
        number=row.attempt,
        outcome=row.state,
        worker=worker,
        started_at=row.attempted_at,
        ended_at=row.finished_at,
        error_type=None,
        error=None,
    )
    return [*recorded, current]


def _wait(row: Row[*tuple[Any, ...]]) -> timedelta | None:
    if row.state not in CLAIMABLE:
        return None
    wait: timedelta = row.run_at - row.seen_at
    return max(wait, timedelta(0))


def _delays(
    row: Row[*tuple[Any, ...]], spec: JobSpec[Any, Any] | None
) -> Sequence[timedelta]:
    if spec is None:
        return ()
    # The attempt that runs or comes next is the first that can fail.
    first = row.attempt + (row.state in CLAIMABLE)
    if row.state not in {*CLAIMABLE, JobState.RUNNING}:
        return ()
    last = min(row.max_attempts, first + MAX_DELAYS_SHOWN)
    backoff = spec.retry.backoff
    return [backoff.delay(number, chance=lambda: 0.0) for number in range(first, last)]


def _payloads(
    session: Session, job_id: UUID, spec: JobSpec[Any, Any] | None
) -> dict[str, Any]:
    """Return the fields of the trace that show input and output."""
    names = ("input", "input_hidden", "output", "output_hidden")
    if spec is None:
        return dict(zip(names, (None, UNDECLARED, None, UNDECLARED), strict=True))
    row = session.execute(
        # As text: what was stored is read exactly, and one bad value breaks nothing.
        select(cast(JobBody.input, Text), cast(JobOutput.output, Text))
        .outerjoin(JobOutput, JobOutput.job_id == JobBody.job_id)
        .where(JobBody.job_id == job_id)
    ).one_or_none()
    given, returned = (None, None) if row is None else row
    shown = (*_masked(given, spec.input_codec), *_masked(returned, spec.output_codec))
    return dict(zip(names, shown, strict=True))


def _masked(text: str | None, codec: Codec[Any]) -> tuple[object, str | None]:
    if text is None:
        return None, None
    try:
        return codec.mask(json.loads(text)), None
    except Exception as error:
        # Whatever keeps it from being masked keeps it from being shown.
        return None, f"it cannot be masked ({type(error).__name__})"
