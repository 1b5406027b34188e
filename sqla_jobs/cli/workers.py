"""``sqla-jobs workers``: who lives and what they run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from sqla_jobs import inspect
from sqla_jobs.cli import json, tables
from sqla_jobs.cli.command import Verb, json_option, place_options
from sqla_jobs.cli.lists import now
from sqla_jobs.cli.watch import watch, watch_options

if TYPE_CHECKING:
    from datetime import timedelta

    from rich.table import Table
    from sqlalchemy.orm import Session

    from sqla_jobs.cli.command import Place
    from sqla_jobs.inspect import WorkerStats


NAMES_SHOWN: Final = 3


@click.command(cls=Verb)
@watch_options
@place_options
@json_option
def workers(*, place: Place, watching: bool, every: timedelta, as_json: bool) -> None:
    """Show the workers, the newest first, and how much they run."""
    if watching:
        watch(place, _table, every)
        return
    with place.look() as session:
        if as_json:
            found = inspect.workers(session)
            json.write({"workers": [stats.as_dict() for stats in found]})
        else:
            tables.console().print(_table(session))


def _table(session: Session) -> Table | Text:
    found = inspect.workers(session)
    seen_at = now(session)
    made = tables.table("worker", "lease", "queues", "running", "hears", "started")
    made.columns[3].justify = "right"
    for stats in found:
        made.add_row(
            tables.stack(
                tables.cell(f"{stats.host}:{stats.pid}"),
                *(tables.cell(f"  {line}", "dim") for line in _running(stats)),
            ),
            _lease(stats),
            _queues(stats),
            tables.stack(
                tables.cell(str(stats.running)),
                tables.cell(f"{stats.stuck} stuck", "red") if stats.stuck else None,
            ),
            _hears(stats),
            tables.relative(stats.started_at, seen_at),
        )
    return tables.or_text(made, "No workers.")


def _queues(stats: WorkerStats) -> Text:
    """Return the queues with their room, below each other where lines are short."""
    rooms = [tables.cell(f"{name}:{room}") for name, room in stats.queues.items()]
    return Text(", " if tables.width() >= tables.MIDDLE else "\n").join(rooms)


def _running(stats: WorkerStats) -> list[str]:
    """Return the names of what *stats* runs, the longest first, each one once."""
    names = Counter(job.name for job in stats.jobs)
    shown = list(names.items())[:NAMES_SHOWN]
    lines = [f"{name} x{count}" if count > 1 else name for name, count in shown]
    return [*lines, *(["…"] if len(names) > NAMES_SHOWN else [])]


def _hears(stats: WorkerStats) -> Text:
    """Say how it learns of jobs: notifications that are known to arrive, or polls."""
    if stats.listening is None:
        return tables.cell("-", "dim")
    return tables.cell("yes") if stats.listening else tables.cell("no: polls", "yellow")


def _lease(stats: WorkerStats) -> Text:
    if stats.alive:
        return tables.cell(f"{tables.span(stats.lease_left, 1)} left", "green")
    return tables.cell(f"expired {tables.span(-stats.lease_left, 1)} ago", "red")
