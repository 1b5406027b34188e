"""``sqla-jobs dead``: the dead letters; list, retry, discard, one by one or all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.text import Text
from sqlalchemy import select

from sqla_jobs import inspect
from sqla_jobs.cli import json, tables
from sqla_jobs.cli.command import Verbs, json_option, place_options
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
from sqla_jobs.exc import JobNotDiscardableError, JobNotFoundError, JobNotRetryableError
from sqla_jobs.inspect import JobFilter
from sqla_jobs.models import Job
from sqla_jobs.queue.control import discard_job, retry_job
from sqla_jobs.states import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqla_jobs.cli.command import Place
    from sqla_jobs.inspect import DeadLetter
    from sqla_jobs.session import JobSession

F = TypeVar("F", bound=Callable[..., Any])

BATCH = 100
ERROR_SHOWN = 200


@click.group(cls=Verbs)
def dead() -> None:
    """Look at dead letters, and give them another chance."""


@dead.command("list")
@filter_options
@page_options
@place_options
@json_option
def list_(
    *,
    place: Place,
    limit: int,
    after: str | None,
    as_json: bool,
    **filters: str | None,
) -> None:
    """List dead jobs with their last error, the latest death first."""
    with place.open() as session:
        page = inspect.dead_letters(
            session, filters=chosen(filters), after=after, limit=limit
        )
        seen_at = now(session)
    if as_json:
        json.write(page.as_dict())
        return
    wide = tables.is_wide()
    made = tables.table(
        *(("id", *WIDE, "error", "died") if wide else ("dead job", "died"))
    )
    for letter in page.items:
        said = _summary(letter)
        error = tables.cell(said, "red")
        ended = letter.finished_at
        died = "-" if ended is None else tables.relative(ended, seen_at)
        if wide:
            made.add_row(*job_cells(letter), error, died)
        else:
            below = Text("  ") + error if said else None
            made.add_row(tables.stack(job_cell(letter), below), died)
    tables.show(made, "No dead letters.")
    tell_next(page)


def _summary(letter: DeadLetter) -> str:
    """Return what the last line of the error says, where tracebacks tell what it was."""
    lines = (letter.error or "").strip().splitlines()
    last = lines[-1][:ERROR_SHOWN] if lines else ""
    kind = letter.error_type or ""
    if not kind or kind in last:
        return last
    return f"{kind}: {last}" if last else kind


def _all_option(command: F) -> F:
    return click.option(
        "--all", "every", is_flag=True, help="All dead jobs that the options choose."
    )(command)


@dead.command()
@ids_argument
@_all_option
@filter_options
@place_options
def retry(
    *, ids: Sequence[UUID], every: bool, place: Place, **filters: str | None
) -> None:
    """Run dead jobs again, with their old input."""
    _steer(
        retry_job, JobNotRetryableError, "ready", place, _chosen(ids, every, filters)
    )


@dead.command()
@ids_argument
@_all_option
@filter_options
@place_options
def discard(
    *, ids: Sequence[UUID], every: bool, place: Place, **filters: str | None
) -> None:
    """Delete dead jobs with all that belongs to them, for good."""
    wanted = _chosen(ids, every, filters)
    _steer(discard_job, JobNotDiscardableError, "discarded", place, wanted)


def _chosen(
    ids: Sequence[UUID], every: bool, filters: dict[str, str | None]
) -> Sequence[UUID] | JobFilter:
    """Return the ids, or with ``--all`` which jobs they shall be."""
    if every is bool(ids):
        raise click.UsageError("Give the ids of dead jobs, or --all.")
    if ids and any(value is not None for value in filters.values()):
        raise click.UsageError("Options that choose jobs go with --all, not with ids.")
    return ids or chosen(filters)


def _steer(
    verb: Callable[[JobSession, UUID], None],
    refused: type[JobNotRetryableError | JobNotDiscardableError],
    became: str,
    place: Place,
    wanted: Sequence[UUID] | JobFilter,
) -> None:
    """Do *verb* to dead jobs; *refused* is what it raises for the wrong state."""

    def act(session: JobSession, job_id: UUID) -> str:
        state = session.scalar(select(Job.state).where(Job.id == job_id))
        if state is None:
            raise JobNotFoundError(job_id)
        if state != JobState.DEAD:  # the other finished ones are for `jobs retry`
            raise refused(job_id, state)
        verb(session, job_id)
        return f"{job_id} is {became}"

    if not isinstance(wanted, JobFilter):
        each(place, wanted, act)
        return
    done, after = 0, None
    with place.open() as session:
        while True:
            page = inspect.dead_letters(
                session, filters=wanted, after=after, limit=BATCH
            )
            for letter in page.items:
                # In a savepoint: one with which somebody else was first does not undo
                # the others.
                try:
                    with session.begin_nested():
                        verb(session, letter.id)
                except (JobNotFoundError, refused):
                    continue
                done += 1
            session.commit()
            after = page.next
            if after is None:
                break
    jobs = "dead job is" if done == 1 else "dead jobs are"
    click.echo(f"{done} {jobs} {became}" if done else "No dead jobs.")
