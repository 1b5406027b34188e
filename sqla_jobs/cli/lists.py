"""Options and printing that ``jobs`` and ``dead`` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from rich.text import Text
from sqlalchemy import select

from sqla_jobs import clock
from sqla_jobs.cli import tables
from sqla_jobs.declare.duration import parse_duration
from sqla_jobs.exc import DurationError
from sqla_jobs.inspect import JobFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from sqla_jobs.inspect import JobSummary, Page

F = TypeVar("F", bound=Callable[..., Any])


class Moment(click.ParamType[datetime | timedelta]):
    """An instant as people give it: how long ago, or a date, in UTC unless it says."""

    name = "moment"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's signature
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> datetime | timedelta:
        """Return an instant, or a duration before the database's present."""
        if isinstance(value, datetime | timedelta):
            return value
        try:
            # As our tables show it, zone and all.
            at = datetime.fromisoformat(str(value).strip().removesuffix(" UTC"))
        except ValueError:
            pass
        else:
            return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        try:
            return parse_duration(value, field="it")
        except DurationError:
            self.fail(
                f"{value!r} is no moment: give how long ago, such as 90s, 15m, 2h or"
                " 3d, or a date, such as 2026-11-30T03:15 (UTC) or"
                " 2026-11-30T03:15+01:00.",
                param,
                ctx,
            )


FILTERS: Final = (
    ("--name", "name", "The job's declared name."),
    ("--queue", "queue", "The queue."),
    ("--tenant", "tenant", "The tenant; an empty one for jobs without."),
    ("--key", "key", "The idempotency key."),
    ("--key-prefix", "key_prefix", "What the key begins with."),
    ("--search", "search", "A part of the name or key."),
    ("--by", "enqueued_by", "Who enqueued it."),
    ("--error", "error", "A part of the last attempt's error, or of its type."),
)


def filter_options(when: str) -> Callable[[F], F]:
    """Add the options that choose jobs; texts match letter for letter.

    :param when: what ``--since`` and ``--until`` look at, for their help.
    """

    def decorate(command: F) -> F:
        for option, text in (("--until", "before"), ("--since", "at or after")):
            command = click.option(
                option,
                type=Moment(),
                metavar="AGO|DATE",
                help=f"{when} {text} this moment: 15m, 2h, 2026-11-30T03:15 (UTC).",
            )(command)
        for option, name, text in reversed(FILTERS):
            command = click.option(option, name, help=text)(command)
        return command

    return decorate


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


def chosen(
    session: Session,
    options: Mapping[str, Any],
    *,
    time: str = "created",
    state: str | None = None,
) -> JobFilter:
    """Return the filter that the options of :func:`filter_options` ask for.

    :param time: the field that ``--since`` and ``--until`` mean.
    """
    given = dict(options)
    for end in ("since", "until"):
        moment = given.pop(end)
        if isinstance(moment, timedelta):
            moment = now(session) - moment
        given[f"{time}_{end}"] = moment
    return JobFilter(state=state, **given)


def job_columns() -> Sequence[str]:
    """Return the names of the columns that say which job it is, as many as fit."""
    width = tables.width()
    if width >= tables.WIDE:
        return ("id", "name", "queue", "tenant", "key")
    return ("id", "job") if width >= tables.MIDDLE else ("job",)


def job_cells(job: JobSummary, below: Text | None = None) -> list[Text]:
    """Return the cells of :func:`job_columns`; *below* is added where lines are short.

    The id is whole at any width, so that it can be copied into the next command.
    """
    columns = job_columns()
    if "key" in columns:
        tenant = "-" if job.tenant is None else job.tenant
        whole = (job.id, job.name, job.queue, tenant, job.key)
        return [tables.cell(value) for value in whole]
    named = [("tenant", job.tenant), ("key", job.key)]
    place = [job.queue] + [f"{n} {value}" for n, value in named if value is not None]
    lines = [tables.cell(job.name), tables.cell(", ".join(place), "dim"), below]
    if "id" in columns:
        return [tables.cell(job.id), tables.stack(*lines)]
    indented = (None if line is None else Text("  ") + line for line in lines)
    return [tables.stack(tables.cell(job.id), *indented)]


def now(session: Session) -> datetime:
    """Return the database's time."""
    return session.execute(select(clock.now())).scalar_one()


def tell_rest(page: Page[Any]) -> None:
    """Say what *page* could not show, and how to see what comes after it."""
    for row in page.unreadable:
        reason = tables.visible(row.reason)
        click.echo(f"Job {row.id} cannot be read: {reason}", err=True)
    if page.next is not None:
        click.echo(f"There are more: --after {page.next}", err=True)
