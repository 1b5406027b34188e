"""SQLite: one fresh file per test, copied from one that holds all tables."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import URL, create_engine

from sqla_jobs.models import metadata
from tests.support.server import memory
from tests.support.shop import Base


class Files:
    """Makes and removes the database files of one test session."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sqla-jobs-", dir=memory()))
        self._numbers = itertools.count(1)
        self._template = self._folder / "template.db"
        engine = create_engine(url_of(self._template))
        try:
            with engine.begin() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            metadata.create_all(engine)
            Base.metadata.create_all(engine)
        finally:
            # The last connection to close leaves no log beside the file.
            engine.dispose()

    def close(self) -> None:
        """Remove all files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextlib.contextmanager
    def fresh(self, *, empty: bool = False) -> Iterator[URL]:
        """Make a database for one test, in a folder of its own; remove it after.

        :param empty: without any tables, for tests that create them.
        """
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        path = folder / "shop.db"
        if not empty:
            shutil.copyfile(self._template, path)
        try:
            yield url_of(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def url_of(path: Path) -> URL:
    """Return the URL of the database file at *path*."""
    return URL.create("sqlite", database=str(path))
