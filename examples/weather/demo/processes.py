"""The processes of the demo: the importer, two workers, and the end of one of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from examples.weather.demo.postgres import Guardian
from sqla_jobs.models import Job, WorkerRow

APP = "--app examples.weather.jobs:jobs --session examples.weather.db:Session"
ROOT = Path(__file__).parents[3]
THREADS = 8
LEASE = "4s"  # The default is 30s: here nobody wants to wait that long for a rescue.

T = TypeVar("T")


class DemoError(Exception):
    """Something did not happen in time, or ended when it should not have."""


def wait_for(what: str, look: Callable[[], T], seconds: float) -> T:
    """Look until the answer is true, and return it."""
    until = time.monotonic() + seconds
    while not (answer := look()):
        if time.monotonic() > until:
            raise DemoError(f"{what}: not within {seconds:g} seconds")
        time.sleep(0.02)
    return answer


class Process:
    """A running process, the leader of a group; what it prints goes to a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        guardian: Guardian,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._guardian = guardian
        with self.log.open("w") as log:
            # A group of its own: Ctrl-C reaches the demo alone, which then stops it.
            self._popen = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                # libpq reads PGAPPNAME: the server can tell whose connections are whose.
                env={**os.environ, **env, "PGAPPNAME": f"weather-{name}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        guardian.watch(self.pid)

    @property
    def pid(self) -> int:
        """Its number, which is its group's too."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    def send(self, number: signal.Signals) -> None:
        """Signal the whole group."""
        if self.returncode is None:
            os.killpg(self.pid, number)

    def stop(self, seconds: float = 10) -> None:
        """End it politely, or else by force."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # Had it been frozen, it would not see that.
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self._guardian.forget(self.pid)

    def kill(self) -> None:
        """End it as the kernel does when memory has run out."""
        self.send(signal.SIGKILL)
        self._popen.wait()
        self._guardian.forget(self.pid)

    def owns(self, pid: int) -> bool:
        """Whether *pid* is this process or one it started."""
        try:
            return os.getpgid(pid) == self.pid
        except ProcessLookupError:
            return False

    def tail(self, lines: int = 15) -> str:
        """The end of what it printed."""
        return "\n".join(self.log.read_text().splitlines()[-lines:])


class Crew:
    """Starts the demo's processes on one database, and ends them all."""

    def __init__(self, engine: Engine, folder: Path, guardian: Guardian) -> None:
        self._engine = engine
        self._folder = folder
        self._guardian = guardian
        url = engine.url.render_as_string(hide_password=False)
        self._env = {"WEATHER_DATABASE_URL": url}
        self.processes: list[Process] = []

    def worker(self, name: str) -> Process:
        """Start ``sqla-jobs worker``, and wait until it has registered."""
        options = f"{APP} -q default:{THREADS} --lease-ttl {LEASE}"
        worker = self._start(name, ["-m", "sqla_jobs", "worker", *options.split()])
        wait_for(f"{name} is up", lambda: self._ids(worker), 30)
        return worker

    def importer(self, folder: Path) -> Process:
        """Start the application's importer on the files in *folder*."""
        return self._start("importer", ["-m", "examples.weather.importer", str(folder)])

    def kill_one(self, workers: Sequence[Process]) -> tuple[Process, set[UUID]]:
        """Kill a worker -9 while it runs jobs; return it and these jobs.

        The worker is frozen for a moment: so the jobs which the database says it runs
        are those it has in its hands when the end comes, not some it just finished. One
        with half of its threads at work is preferred.
        """
        started = time.monotonic()
        while (passed := time.monotonic() - started) < 30:
            enough = THREADS // 2 if passed < 5 else 1
            for worker in workers:
                worker.send(signal.SIGSTOP)
                wait_for(f"{worker.name} is quiet", lambda: not self._busy(worker), 5)  # noqa: B023 - called at once
                if len(running := self._running(worker)) >= enough:
                    worker.kill()
                    return worker, running
                worker.send(signal.SIGCONT)
                time.sleep(0.05)
        raise DemoError("no worker was seen with a running job: nothing to kill")

    def check(self) -> None:
        """Raise when a process has ended that should not have."""
        for process in self.processes:
            code = process.returncode
            if code is not None and code not in (0, -signal.SIGKILL):
                raise DemoError(f"{process.name} ended with exit code {code}")

    def close(self) -> None:
        """End them all."""
        for process in self.processes:
            process.stop()

    def _start(self, name: str, command: Sequence[str]) -> Process:
        process = Process(name, command, self._env, self._folder, self._guardian)
        self.processes.append(process)
        return process

    def _ids(self, worker: Process) -> list[UUID]:
        if worker.returncode is not None:
            raise DemoError(f"{worker.name} ended with exit code {worker.returncode}")
        with Session(self._engine) as session:
            rows = session.execute(select(WorkerRow.id, WorkerRow.pid)).all()
        return [row for row, pid in rows if worker.owns(pid)]

    def _running(self, worker: Process) -> set[UUID]:
        mine = select(Job.id).where(
            Job.state == "running", Job.worker_id.in_(self._ids(worker))
        )
        with Session(self._engine) as session:
            return set(session.scalars(mine))

    def _busy(self, worker: Process) -> bool:
        """Whether the server still works on something that the worker has sent."""
        if self._engine.dialect.name == "sqlite":
            return False  # The worker does it all itself, and it is frozen.
        active = text(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = :name AND state = 'active'"
        )
        with Session(self._engine) as session:
            return bool(session.scalar(active, {"name": f"weather-{worker.name}"}))


@contextmanager
def crew(engine: Engine, folder: Path, guardian: Guardian) -> Iterator[Crew]:
    """Give a crew; when something fails, tell what the processes said last."""
    people = Crew(engine, folder, guardian)
    try:
        yield people
    except DemoError as error:
        for process in people.processes:
            if tail := process.tail():
                error.add_note(f"--- {process.log.name}\n{tail}")
        raise
    finally:
        people.close()
