"""``sqla-jobs jobs``: list, show, cancel, retry, discard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from sqlalchemy import select

from sqla_jobs import inspect
from sqla_jobs.cli import json, tables
from sqla_jobs.cli.command import (
    Verbs,
    json_option,
    place_options,
)
from sqla_jobs.cli.lists import (
    WIDE,
    chosen,
    each,
    filter_options,
    ids_argument,
    job_cell,
    job_cells,
    now,
    page_options,
    tell_next,
)
from sqla_jobs.cli.trace import print_trace
from sqla_jobs.models import Job
from sqla_jobs.queue.control import cancel_job, discard_job, retry_job
from sqla_jobs.states import CLAIMABLE, JobState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from sqla_jobs.cli.command import Place
    from sqla_jobs.inspect import JobSummary
    from sqla_jobs.session import JobSession


@click.group(cls=Verbs)
def jobs() -> None:
    """Look at jobs and steer them."""


@jobs.command("list")
@filter_options
@click.option(
    "--state", type=click.Choice([state.value for state in JobState]), help="The state."
)
@page_options
@place_options
@json_option
def list_(
    place: Place,
    state: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
    **filters: str | None,
) -> None:
    """List jobs, the newest first."""
    with place.open() as session:
        page = inspect.jobs(
            session, filters=chosen(filters, state), after=after, limit=limit
        )
        seen_at = now(session)
    if as_json:
        json.write(page.as_dict())
        return
    wide = tables.is_wide()
    narrow = ("job", "state", "tries", "when")
    made = tables.table(*(("id", *WIDE, *narrow[1:]) if wide else narrow))
    for job in page.items:
        made.add_row(
            *(job_cells(job) if wide else (job_cell(job),)),
            tables.state(job.state),
            f"{job.attempt}/{job.max_attempts}",
            _when(job, seen_at),
        )
    tables.show(made, "No jobs.")
    tell_next(page)


def _when(job: JobSummary, now: datetime) -> str:
    if job.finished_at is not None:
        return tables.relative(job.finished_at, now)
    if job.state in CLAIMABLE:
        due = job.run_at <= now
        return f"{'due ' if due else ''}{tables.relative(job.run_at, now)}"
    if job.cancel_requested_at is not None:
        return "stopping"
    if job.attempted_at is None:
        return "-"
    return f"for {tables.span(now - job.attempted_at, 1)}"


@jobs.command()
@click.argument("job_id", metavar="ID", type=click.UUID)
@place_options
@json_option
def show(
    *,
    job_id: UUID,
    place: Place,
    as_json: bool,
) -> None:
    """Show one job with all its attempts.

    Input and output are shown, with sensitive fields masked, when --app tells which
    fields are.
    """
    declared = place.jobs()
    with place.open() as session:
        trace = inspect.job(session, job_id, registry=declared)
    if as_json:
        json.write(trace.as_dict())
    else:
        print_trace(trace)


@jobs.command()
@ids_argument
@click.option("--reason", help="Kept with the job and shown to people.")
@place_options
def cancel(
    *,
    ids: Sequence[UUID],
    reason: str | None,
    place: Place,
) -> None:
    """Cancel jobs: at once while they wait, by asking while they run."""

    def act(session: JobSession, job_id: UUID) -> str:
        cancel_job(session, job_id, reason=reason)
        session.commit()
        state = session.scalar(select(Job.state).where(Job.id == job_id))
        if state == JobState.RUNNING:
            return f"{job_id} is running and was asked to stop"
        return f"{job_id} is cancelled"

    each(place, ids, act)


@jobs.command()
@ids_argument
@place_options
def retry(*, ids: Sequence[UUID], place: Place) -> None:
    """Run finished jobs again, with their old input."""

    def act(session: JobSession, job_id: UUID) -> str:
        retry_job(session, job_id)
        return f"{job_id} is ready"

    each(place, ids, act)


@jobs.command()
@ids_argument
@place_options
def discard(*, ids: Sequence[UUID], place: Place) -> None:
    """Delete finished jobs with all that belongs to them, for good."""

    def act(session: JobSession, job_id: UUID) -> str:
        discard_job(session, job_id)
        return f"{job_id} is discarded"

    each(place, ids, act)
