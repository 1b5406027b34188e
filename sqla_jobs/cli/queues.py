"""``sqla-jobs queues``: how they stand; pause and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sqla_jobs import inspect
from sqla_jobs.cli import json, tables
from sqla_jobs.cli.command import (
    Refused,
    Verbs,
    json_option,
    place_options,
)
from sqla_jobs.cli.lists import now
from sqla_jobs.cli.watch import watch, watch_options
from sqla_jobs.queue.control import pause_queue, resume_queue

if TYPE_CHECKING:
    from datetime import timedelta

    from rich.table import Table
    from rich.text import Text
    from sqlalchemy.orm import Session

    from sqla_jobs.cli.command import Place


@click.group(cls=Verbs, invoke_without_command=True)
@watch_options
@place_options
@json_option
@click.pass_context
def queues(
    ctx: click.Context,
    /,
    *,
    place: Place,
    watching: bool,
    every: timedelta,
    as_json: bool,
) -> None:
    """Show how the queues stand; pause and resume them."""
    if ctx.invoked_subcommand is not None:
        return
    if watching:
        watch(place, _table, every)
        return
    with place.look() as session:
        if as_json:
            found = inspect.queues(session)
            json.write({"queues": [stats.as_dict() for stats in found]})
        else:
            tables.console().print(_table(session))


def _table(session: Session) -> Table | Text:
    found = inspect.queues(session)
    seen_at = now(session)
    made = tables.table(
        "queue", "ready", "later", "running", "dead", "oldest", "workers"
    )
    for column in made.columns[1:]:
        column.justify = "right"
    for stats in found:
        paused = stats.paused_at
        since = None if paused is None else tables.relative(paused, seen_at)
        age = stats.oldest_ready_age
        unserved = stats.ready and not stats.workers
        made.add_row(
            tables.stack(
                tables.cell(stats.name),
                None if since is None else tables.cell(f"paused {since}", "yellow"),
            ),
            tables.count(stats.ready),
            tables.count(max(stats.depth - stats.ready, 0)),
            tables.count(stats.running),
            tables.cell(tables.count(stats.dead), "red" if stats.dead else ""),
            "-" if age is None else tables.span(age),
            tables.cell(stats.workers, "red" if unserved else ""),
        )
    return tables.or_text(made, "No queues: there are no jobs, no workers, no pauses.")


@queues.command()
@click.argument("name")
@click.option(
    "--new", is_flag=True, help="Also when no job and no worker knows it yet."
)
@place_options
def pause(*, name: str, new: bool, place: Place) -> None:
    """Stop workers from claiming jobs of queue NAME; what runs goes on."""
    with place.open() as session:
        if not new:
            _refuse_unknown(session, name)
        changed = pause_queue(session, name)
    click.echo(f"{name} is paused" if changed else f"{name} was paused already")


@queues.command()
@click.argument("name")
@place_options
def resume(*, name: str, place: Place) -> None:
    """Let workers claim jobs of queue NAME again."""
    with place.open() as session:
        _refuse_unknown(session, name)
        changed = resume_queue(session, name)
    click.echo(f"{name} is resumed" if changed else f"{name} was not paused")


def _refuse_unknown(session: Session, name: str) -> None:
    """Refuse a queue that nobody uses: a misspelt pause would look like a pause."""
    known = [stats.name for stats in inspect.queues(session)]
    if name not in known:
        there = ", ".join(known) or "none"
        message = f"No job and no worker knows a queue {name!r}; there are: {there}."
        raise Refused(message, "queue-unknown")
