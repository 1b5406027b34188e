"""SQLite in a temporary folder: no server to start, a file to remove."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL

from examples.weather.demo.postgres import Embedded, Guardian


@contextmanager
def sqlite_file() -> Iterator[Embedded]:
    """Give a database that does not exist yet."""
    folder = Path(tempfile.mkdtemp(prefix="weather-demo-"))
    guardian = Guardian(folder)
    try:
        url = URL.create(
            "sqlite",
            database=str(folder / "weather.db"),
            # Seconds that a statement waits for another writer; 5 when nothing is said.
            query={"timeout": "30"},
        )
        yield Embedded("SQLite", url, sqlite3.sqlite_version, folder, guardian)
    finally:
        guardian.close()
        shutil.rmtree(folder, ignore_errors=True)
