"""Options and printing that ``jobs list`` and ``dead list`` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from sqlalchemy import select

from sqla_jobs import clock
from sqla_jobs.cli import tables
from sqla_jobs.exc import JobsError
from sqla_jobs.inspect import JobFilter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from rich.text import Text
    from sqlalchemy.orm import Session

    from sqla_jobs.cli.command import Place
    from sqla_jobs.inspect import JobSummary, Page
    from sqla_jobs.session import JobSession

F = TypeVar("F", bound=Callable[..., Any])

ids_argument = click.argument("ids", metavar="ID...", nargs=-1, type=click.UUID)


def filter_options(command: F) -> F:
    """Add the options that choose jobs."""
    for name, text in (
        ("--search", "A part of the name or key; % and _ are characters."),
        ("--key", "The idempotency key."),
        ("--tenant", "The tenant; an empty one for jobs without."),
        ("--queue", "The queue."),
        ("--name", "The job's declared name."),
    ):
        command = click.option(name, help=text)(command)
    return command


def page_options(command: F) -> F:
    """Add the options that choose a page."""
    limit = click.option(
        "--limit",
        type=click.IntRange(1, 1000),
        default=50,
        show_default=True,
        help="How many at most.",
    )
    after = click.option("--after", help="Go on here: what the last page ended with.")
    return limit(after(command))


def chosen(options: dict[str, str | None], state: str | None = None) -> JobFilter:
    """Return the filter that the options of :func:`filter_options` ask for."""
    return JobFilter(state=state, **options)


WIDE: Final = ("name", "queue", "tenant", "key")
"""What of a job has a column of its own where there is room."""


def job_cells(job: JobSummary) -> list[Text]:
    """Return the id and :data:`WIDE` of a job."""
    tenant = "-" if job.tenant is None else job.tenant
    return [
        tables.cell(value) for value in (job.id, job.name, job.queue, tenant, job.key)
    ]


def job_cell(job: JobSummary) -> Text:
    """Return the same below each other, for 80 columns; the id can still be copied."""
    named = [("tenant", job.tenant), ("key", job.key)]
    place = [job.queue] + [f"{n} {value}" for n, value in named if value is not None]
    return tables.stack(
        tables.cell(job.id),
        tables.cell(f"  {job.name}"),
        tables.cell(f"  {', '.join(place)}", "dim"),
    )


def now(session: Session) -> datetime:
    """Return the database's time."""
    return session.execute(select(clock.now())).scalar_one()


def tell_next(page: Page[Any]) -> None:
    """Say how to see what comes after *page*."""
    if page.next is not None:
        click.echo(f"There are more: --after {page.next}", err=True)


def each(
    place: Place, ids: Sequence[UUID], act: Callable[[JobSession, UUID], str]
) -> None:
    """Do *act* to each id and print what it says; exit with 1 if any was refused.

    Each is a transaction by itself: one that is refused does not keep the others from
    being done.
    """
    if not ids:
        raise click.UsageError("Give the id of at least one job.")
    refused = False
    with place.open() as session:
        for job_id in ids:
            try:
                said = act(session, job_id)
                session.commit()
            except JobsError as error:
                session.rollback()
                refused = True
                click.echo(f"Refused: {error}", err=True)
            else:
                click.echo(said)
    if refused:
        click.get_current_context().exit(1)
