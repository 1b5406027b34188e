"""Import a year of readings, kill a worker midway, and prove that nothing was lost.

python -m examples.weather.demo [--json] [--keep] [--db sqlite] [--restart]
"""

import argparse
import contextlib
import datetime as dt
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from uuid import UUID

import attrs
from rich.console import Console
from sqlalchemy import Engine, create_engine

from examples.weather import importer
from examples.weather.db import create_schema
from examples.weather.demo.facts import Facts, Progress, lost_jobs, read_facts
from examples.weather.demo.postgres import Embedded, embedded_postgresql
from examples.weather.demo.processes import Crew, DemoError, Process, crew, wait_for
from examples.weather.demo.sqlite import sqlite_file
from examples.weather.demo.verify import Check, Key, expected, verify
from examples.weather.demo.view import View

LIMIT = 90  # Seconds for all jobs to settle; on two quiet cores it takes about ten.
# Early in the year: its attempts are over long before a worker is killed.
SPOILT: Key = ("seattle", dt.date(2010, 1, 4))
IMPOSSIBLE = "451.0"
DATABASES = {"postgresql": embedded_postgresql, "sqlite": sqlite_file}


@attrs.frozen
class Result:
    """What the demo found out."""

    database: str
    killed: str
    held: int
    """Jobs that the killed worker ran at its end."""
    facts: Facts
    checks: list[Check]

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def as_json(self) -> str:
        """All facts, for programs."""
        killed = {"worker": self.killed, "jobs_held": self.held}
        return json.dumps(
            {
                "ok": self.ok,
                "database": self.database,
                "killed": killed,
                **self.facts.as_dict(),
                "checks": [attrs.asdict(check) for check in self.checks],
            },
            indent=2,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 only when every check holds."""
    options = _parser().parse_args(arguments)
    # Both end it through the finally clauses that stop what was started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    view = View(Console(quiet=options.json, highlight=False))
    try:
        with DATABASES[options.db]() as server:
            # Pinged: with --restart its connections are lost as well.
            engine = create_engine(server.url, pool_pre_ping=True)
            with crew(engine, server.folder, server.guardian) as people:
                with view:
                    result = play(server, engine, people, view, restart=options.restart)
                view.report(result.facts, result.checks)
                if options.json:
                    print(result.as_json(), flush=True)
                if options.keep:
                    _keep(server)
            engine.dispose()
    except DemoError as error:
        print(
            "\n".join([f"demo: {error}", *getattr(error, "__notes__", [])]),
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130
    return 0 if result.ok else 1


def play(
    server: Embedded, engine: Engine, people: Crew, view: View, *, restart: bool
) -> Result:
    """Let everything happen, and look at the end."""
    view.say(f"{server.name} {server.version} is ready in {server.folder}")
    create_schema(engine)
    original = importer.package_data()
    summaries = expected(original, importer.FILES)
    folder = spoil(original, server.folder / "readings")
    view.say(f"spoilt a reading: {SPOILT[0]}, {SPOILT[1]}: {IMPOSSIBLE} °F")

    workers = [people.worker(name) for name in ("worker-1", "worker-2")]
    pids = " and ".join(f"{worker.name} (pid {worker.pid})" for worker in workers)
    view.say(f"{pids} are waiting for jobs")
    importing = people.importer(folder)
    view.say(f"importing {len(summaries)} days, each in one transaction with its jobs")

    days = len(summaries)
    killed, held = _until_midway(engine, people, view, days, workers)
    view.say(f"killed {killed.name} with -9 while it held {len(held)} jobs", "bold red")
    if restart and server.restart is not None:
        server.restart()
        view.say("restarted PostgreSQL as after a crash: -m immediate", "bold red")
    _until_settled(engine, people, view, days, importing)
    view.say("all jobs are settled")
    return Result(
        database=f"{server.name} {server.version}",
        killed=killed.name,
        held=len(held),
        facts=read_facts(engine),
        checks=verify(engine, summaries, SPOILT, held, lost_jobs(engine)),
    )


def spoil(original: Path, copy: Path) -> Path:
    """Copy the files, with one reading of one day that cannot be."""
    copy.mkdir()
    for file in importer.FILES.values():
        (copy / file).write_text((original / file).read_text())
    spoilt = copy / importer.FILES[SPOILT[0]]
    noon = f"{SPOILT[1]:%Y/%m/%d} 12:00,"
    lines = [
        f"{noon}{IMPOSSIBLE}" if line.startswith(noon) else line
        for line in spoilt.read_text().splitlines()
    ]
    spoilt.write_text("\n".join(lines))
    return copy


def _until_midway(
    engine: Engine, people: Crew, view: View, days: int, workers: Sequence[Process]
) -> tuple[Process, set[UUID]]:
    """Wait until a third of the jobs is settled, then kill a worker."""

    def midway() -> bool:
        return _look(engine, people, view, days).settled >= 2 * days / 3

    wait_for("a third of the jobs", midway, LIMIT)
    return people.kill_one(workers)


def _until_settled(
    engine: Engine, people: Crew, view: View, days: int, importing: Process
) -> None:
    """Wait until the importer is through and no job is left to run."""

    said: set[str] = set()

    def say_once(line: str) -> None:
        if line not in said:
            said.add(line)
            view.say(line)

    def settled() -> bool:
        imported = importing.returncode == 0
        progress = _look(engine, people, view, days)
        if imported:
            say_once("all days are imported")
        if progress.attempts.get("lost"):
            say_once("the killed worker's lease ran out: its jobs run again")
        return imported and progress.open == 0

    try:
        wait_for("all jobs settled", settled, LIMIT)
    except DemoError as error:
        raise DemoError(f"{error}; now {Progress.read(engine)}") from None


def _look(engine: Engine, people: Crew, view: View, days: int) -> Progress:
    people.check()
    progress = Progress.read(engine)
    idle = progress.open and progress.open == progress.states.get("running")
    imported = progress.days == days and not progress.attempts.get("lost")
    note = "the killed worker's lease runs out" if idle and imported else ""
    view.show(progress, days, note)
    time.sleep(0.2)
    return progress


def _keep(server: Embedded) -> None:
    """Hold the database and the second worker until the user has looked around."""
    url = server.url.render_as_string(hide_password=False)
    command = _command()
    lines = [
        "",
        "All of it still runs. In another terminal, in this folder:",
        "",
        f"  export SQLA_JOBS_DATABASE_URL='{url}'",
        f"  {command} jobs list",
        f"  {command} dead list",
        f"  {command} workers",
        "",
        "Enter or Ctrl-C ends it.",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.readline()


def _command() -> str:
    """How to call the command line of this interpreter, from the current folder."""
    here = Path.cwd()
    script = Path(sys.executable).with_name("sqla-jobs")
    if not script.exists():
        return f"{sys.executable} -m sqla_jobs"
    return str(script.relative_to(here) if script.is_relative_to(here) else script)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.weather.demo", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.add_argument(
        "--keep", action="store_true", help="leave the database up until Enter"
    )
    parser.add_argument(
        "--db", choices=[*DATABASES], default="postgresql", help="which database"
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="also restart PostgreSQL midway, with pg_ctl restart -m immediate",
    )
    return parser


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal.signal's signature
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
