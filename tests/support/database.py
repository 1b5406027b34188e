"""One fresh database per test, copied from a template that holds all tables.

A database, not a schema: LISTEN/NOTIFY channels, advisory locks and what
pg_stat_activity shows are then this test's alone.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Iterator

import psycopg
from psycopg import sql
from sqlalchemy import URL, create_engine

from sqla_jobs.models import metadata
from tests.support.server import Server
from tests.support.shop import Base

PREFIX = "sqla_jobs_test_"


class Databases:
    """Makes and drops the databases of one test session on one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        # An advisory lock held by this connection marks the session as alive: what a
        # killed session left on a server that goes on is dropped by the next one.
        self._admin = server.connect()
        self._mark = secrets.randbits(31)
        self._numbers = itertools.count(1)
        self._admin.execute("SELECT pg_advisory_lock(%s)", [self._mark])
        self._drop_orphans()
        self._template = self._name("template")
        self._create(self._template)
        engine = create_engine(server.database(self._template))
        try:
            metadata.create_all(engine)
            Base.metadata.create_all(engine)
        finally:
            engine.dispose()

    def close(self) -> None:
        """Drop the template and leave the server."""
        self._drop(self._template)
        self._admin.close()

    @contextlib.contextmanager
    def fresh(self, *, empty: bool = False) -> Iterator[URL]:
        """Create a database for one test; drop it after, whoever is still connected.

        :param empty: without any tables, for tests that create them.
        """
        name = self._name(str(next(self._numbers)))
        self._create(name, template=None if empty else self._template)
        try:
            yield self.server.database(name)
        finally:
            self._drop(name)

    def _name(self, suffix: str) -> str:
        return f"{PREFIX}{self._mark:x}_{suffix}"

    def _create(self, name: str, template: str | None = None) -> None:
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        source = sql.Identifier(template or "template0")
        self._admin.execute(statement.format(sql.Identifier(name), source))

    def _drop(self, name: str) -> None:
        statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        self._admin.execute(statement.format(sql.Identifier(name)))

    def _drop_orphans(self) -> None:
        found = self._admin.execute(
            "SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [PREFIX]
        )
        for (name,) in found.fetchall():
            mark = int(str(name).removeprefix(PREFIX).split("_")[0], 16)
            if mark == self._mark or not self._take(mark):
                continue
            with contextlib.suppress(psycopg.errors.InvalidCatalogName):
                self._drop(str(name))
            self._admin.execute("SELECT pg_advisory_unlock(%s)", [mark])

    def _take(self, mark: int) -> bool:
        row = self._admin.execute("SELECT pg_try_advisory_lock(%s)", [mark]).fetchone()
        return row is not None and bool(row[0])
