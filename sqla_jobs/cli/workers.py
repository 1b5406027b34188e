"""``sqla-jobs workers``: who lives and what they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from sqla_jobs import inspect
from sqla_jobs.cli import json, tables
from sqla_jobs.cli.command import Verb, json_option, place_options
from sqla_jobs.cli.lists import now
from sqla_jobs.cli.watch import watch, watch_options

if TYPE_CHECKING:
    from datetime import timedelta

    from rich.table import Table
    from rich.text import Text
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
    made = tables.table("worker", "lease", "queues", "running", "started")
    for stats in found:
        made.add_row(
            tables.stack(
                tables.cell(f"{stats.host}:{stats.pid}"),
                tables.cell(f"  {_running(stats)}", "dim") if stats.jobs else None,
            ),
            _lease(stats),
            tables.cell(", ".join(f"{q}:{room}" for q, room in stats.queues.items())),
            str(stats.running),
            tables.relative(stats.started_at, seen_at),
        )
    return tables.or_text(made, "No workers.")


def _running(stats: WorkerStats) -> str:
    """Return the names of what *stats* runs, the longest first, each one once."""
    names = list(dict.fromkeys(job.name for job in stats.jobs))
    return ", ".join(names[:NAMES_SHOWN]) + (", …" if names[NAMES_SHOWN:] else "")


def _lease(stats: WorkerStats) -> Text:
    if stats.alive:
        return tables.cell(f"{tables.span(stats.lease_left)} left", "green")
    return tables.cell(f"expired {tables.span(-stats.lease_left)} ago", "red")
