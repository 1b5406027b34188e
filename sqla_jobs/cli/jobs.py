"""``sqla-jobs jobs``: list, show, cancel, retry, discard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sqla_jobs import inspect
from sqla_jobs.cli import json, tables
from sqla_jobs.cli.command import Verbs, json_option, place_options
from sqla_jobs.cli.lists import (
    chosen,
    filter_options,
    job_cells,
    job_columns,
    now,
    page_options,
    tell_rest,
)
from sqla_jobs.cli.steer import steer, steer_options
from sqla_jobs.cli.trace import print_trace
from sqla_jobs.queue.changes import FROM, Change
from sqla_jobs.states import CLAIMABLE, JobState

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from sqla_jobs.cli.command import Place
    from sqla_jobs.inspect import JobSummary


@click.group(cls=Verbs)
def jobs() -> None:
    """Look at jobs and steer them."""


@jobs.command("list")
@filter_options("Enqueued")
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
    **filters: object,
) -> None:
    """List jobs, the newest first. Texts are looked for letter for letter."""
    with place.look() as session:
        meant = chosen(session, filters, state=state)
        page = inspect.jobs(session, filters=meant, after=after, limit=limit)
        seen_at = now(session)
    if as_json:
        json.write(page.as_dict())
        return
    made = tables.table(*job_columns(), "state", "tries", "when")
    for job in page.items:
        made.add_row(
            *job_cells(job),
            tables.state(job.state),
            f"{job.attempt}/{job.max_attempts}",
            _when(job, seen_at),
        )
    tables.show(made, "No jobs.")
    tell_rest(page)


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
    with place.look() as session:
        trace = inspect.job(session, job_id, registry=declared)
    if as_json:
        json.write(trace.as_dict())
    else:
        print_trace(trace)


_finished = click.option(
    "--state",
    type=click.Choice(FROM[Change.RETRY]),
    help="With --all: which of the finished ones.",
)


@jobs.command()
@filter_options("Enqueued")
@click.option(
    "--state", type=click.Choice(FROM[Change.CANCEL]), help="With --all: the state."
)
@steer_options
@click.option("--reason", help="Kept with the job and shown to people.")
@place_options
def cancel(**options: Any) -> None:  # noqa: ANN401 - click's parameters
    """Cancel jobs: at once while they wait, by asking while they run."""
    steer(Change.CANCEL, **options)


@jobs.command()
@filter_options("Enqueued")
@_finished
@steer_options
@place_options
def retry(**options: Any) -> None:  # noqa: ANN401 - click's parameters
    """Run finished jobs again, with their old input."""
    steer(Change.RETRY, **options)


@jobs.command()
@filter_options("Enqueued")
@_finished
@steer_options
@place_options
def discard(**options: Any) -> None:  # noqa: ANN401 - click's parameters
    """Delete finished jobs with all that belongs to them, for good."""
    steer(Change.DISCARD, **options)
