"""``sqla-jobs backfill run``: backfills in this process, with a progress bar."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from sqlalchemy.orm import sessionmaker

from sqla_jobs.backfills import gate_backfill, run_backfill
from sqla_jobs.cli import json, tables
from sqla_jobs.cli.command import Verb, json_option, place_options
from sqla_jobs.exc import BackfillAppliedError, BackfillUnknownError
from sqla_jobs.queue.schema import check_schema
from sqla_jobs.revisions import find_environment
from sqla_jobs.session import JobSession
from sqla_jobs.settings import pyproject_section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from sqla_jobs.backfills.progress import Progress
    from sqla_jobs.cli.command import Place
    from sqla_jobs.declare.backfill import BackfillSpec
    from sqla_jobs.revisions import MigrationEnvironment

STOPS: Final = (signal.SIGINT, signal.SIGTERM)

alembic_option = click.option(
    "--alembic",
    metavar="PATH",
    envvar="SQLA_JOBS_ALEMBIC",
    show_envvar=True,
    default=lambda: pyproject_section().get("alembic"),
    help="alembic.ini or its script folder; ./alembic.ini unless given.",
)
environment_option = click.option(
    "--environment",
    envvar="SQLA_JOBS_ENVIRONMENT",
    show_envvar=True,
    help="Which environment the database is of, such as production.",
)


@click.command(cls=Verb)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="All that are not done.")
@alembic_option
@environment_option
@place_options
@json_option
def run(
    *,
    names: tuple[str, ...],
    everything: bool,
    alembic: str | None,
    environment: str | None,
    place: Place,
    as_json: bool,
) -> None:
    """Run the backfills NAME, or --all that are not done, one after the other.

    Ctrl-C and SIGTERM pause after the batch in hand; the next run goes on there. After
    a kill the next run goes on when the lease of the killed one has ended, a minute.
    """
    if bool(names) == everything:
        raise click.UsageError("Give names, or --all.")
    jobs = place.jobs()
    if jobs is None:
        raise click.UsageError("Which application? Give --app MODULE:ATTRIBUTE.")
    specs = jobs.backfills
    for name in names:
        if name not in specs:
            raise BackfillUnknownError(name, specs)
    migrations = find_environment(alembic)
    engine = place.engine()
    results: list[dict[str, object]] = []
    try:
        sessions = sessionmaker(engine, class_=JobSession)
        with sessions() as session:
            check_schema(session)
        with _stoppable() as stop:
            for spec in _chosen(specs, names, migrations):
                try:
                    with sessions() as session:
                        gate_backfill(session, spec, migrations, environment)
                except BackfillAppliedError:
                    if everything:
                        continue
                    raise
                results.append(_run_one(sessions, spec, stop, quiet=as_json))
                if stop.is_set():
                    break
    finally:
        engine.dispose()
    if as_json:
        json.write({"runs": results})
    if any(result["status"] != "done" for result in results):
        click.get_current_context().exit(1)
    if not results and not as_json:
        click.echo("All backfills are done.")


def _chosen(
    specs: Mapping[str, BackfillSpec],
    names: tuple[str, ...],
    migrations: MigrationEnvironment,
) -> list[BackfillSpec]:
    """Return the backfills in the order of their migrations."""
    if names:
        return [specs[name] for name in names]
    order = [script.revision for script in migrations.script.walk_revisions()][::-1]
    place = {revision: number for number, revision in enumerate(order)}
    return sorted(
        specs.values(), key=lambda spec: (place.get(spec.after, len(place)), spec.name)
    )


def _run_one(
    sessions: sessionmaker[JobSession],
    spec: BackfillSpec,
    stop: threading.Event,
    *,
    quiet: bool,
) -> dict[str, object]:
    """Run *spec* and tell about it."""
    name = spec.name
    by = f"{socket.gethostname()}:{os.getpid()}"
    with _bar(name, quiet=quiet) as moved:
        result = run_backfill(sessions, spec, by=by, progress=moved, stop=stop)
    if not quiet:
        failed = f", {result.failed:,} failed" if result.failed else ""
        line = f"{name} is {result.status}: {result.rows:,} rows in this run{failed}"
        click.echo(tables.visible(line))
    return {
        "name": name,
        "status": result.status,
        "rows": result.rows,
        "failed": result.failed,
    }


@contextmanager
def _bar(name: str, *, quiet: bool) -> Iterator[Callable[[Progress, int], None]]:
    """Give what moves the bar; no bar where no terminal is."""
    with Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[told]}", markup=False),
        console=tables.console(),
        expand=True,
        transient=True,
        disable=quiet or not sys.stdout.isatty(),
    ) as bars:
        task: TaskID = bars.add_task(tables.visible(name), total=None, told="")

        def moved(progress: Progress, failed: int) -> None:
            bars.update(
                task,
                completed=progress.rows_done,
                total=progress.total,
                told=told(progress, failed),
            )

        yield moved


def told(progress: Progress, failed: int) -> str:
    """Return the numbers that stand beside the bar."""
    total = "" if progress.total is None else f" of {progress.total:,}"
    parts = [f"{progress.rows_done:,}{total} rows"]
    if progress.percent is not None:
        parts.append(f"{progress.percent:.1f} %")
    if progress.rows_per_second is not None:
        parts.append(f"{progress.rows_per_second:,.0f} rows/s")
    if progress.eta is not None and not progress.finished:
        parts.append(f"{tables.span(progress.eta)} to go")
    if failed:
        parts.append(f"{failed:,} failed")
    return ", ".join(parts)


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and SIGTERM set; a second Ctrl-C ends at once."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, on_signal) for number in STOPS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
