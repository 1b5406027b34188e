"""PgBouncer in transaction mode before a server of ours, where it is installed."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import URL

from tests.support.waiting import wait_until

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
"""Debian's package ``pgbouncer`` has it; nothing else of the package is used."""

# Server connections are few, so that transactions of one client meet many of them.
SETTINGS = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
max_prepared_statements = 0
server_reset_query =
"""


@contextlib.contextmanager
def bouncer(url: URL) -> Iterator[URL]:
    """Run PgBouncer before the server of *url*, as an ordinary user; give its URL."""
    assert PROGRAM is not None
    folder = Path(tempfile.mkdtemp(prefix="sqla-jobs-bouncer-"))
    folder.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    host = url.query.get("host") or url.host or "127.0.0.1"
    file = folder / "pgbouncer.ini"
    settings = SETTINGS.format(host=host, port=url.port or 5432, own=port)
    database = f"[databases]\n* = user={url.username} "
    settings = settings.replace("[databases]\n* = ", database)
    # Before 1.21 there is no such setting: it never supported them.
    if _version() < (1, 21):
        settings = settings.replace("max_prepared_statements = 0\n", "")
    file.write_text(settings)
    # Its log goes there: it says why when it does not start.
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [PROGRAM, str(file)],
            user=_ordinary_user(host),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(
            lambda: _answers(process, port, folder / "log"), what="PgBouncer is up"
        )
        yield URL.create(
            url.drivername,
            username=url.username,
            host="127.0.0.1",
            port=port,
            database=url.database,
        )
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _version() -> tuple[int, ...]:
    said = subprocess.run(
        [str(PROGRAM), "--version"], capture_output=True, text=True, check=True
    )
    number = said.stdout.split()[1]
    return tuple(int(part) for part in number.split(".")[:2])


def _ordinary_user(host: object) -> str | None:
    """Return whom to run it as: it refuses root, and must reach the server's socket."""
    if os.geteuid() != 0:
        return None
    if isinstance(host, str) and host.startswith("/"):
        return pwd.getpwuid(Path(host).stat().st_uid).pw_name
    return "nobody"


def _answers(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False
