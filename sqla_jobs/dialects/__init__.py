"""Only the SQL that differs between databases, and flags for what each can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqla_jobs.dialects.base import QueueDialect, bind_arguments, job_connection
from sqla_jobs.dialects.postgresql import PostgreSQLDialect
from sqla_jobs.dialects.rows import (
    Claimed,
    Existing,
    NewJob,
    RenewalRow,
    Rescued,
    SettleRow,
)
from sqla_jobs.dialects.sqlite import SQLiteDialect
from sqla_jobs.exc import DatabaseUnsupportedError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect

_DIALECTS: dict[str, QueueDialect] = {
    d.name: d for d in (PostgreSQLDialect(), SQLiteDialect())
}

OWN_DRIVER = {name: dialect.own_driver for name, dialect in _DIALECTS.items()}
"""The driver of the library's own connections, by the database's name."""


def find_dialect(dialect: Dialect) -> QueueDialect | None:
    """Return the queue's statements for *dialect*, or None."""
    return _DIALECTS.get(dialect.name)


def dialect_named(dialect: Dialect) -> QueueDialect:
    """Return the queue's statements for *dialect*.

    :raises DatabaseUnsupportedError: there are none.
    """
    found = find_dialect(dialect)
    if found is None:
        known = ", ".join(_DIALECTS)
        raise DatabaseUnsupportedError(dialect.name, f"the queue needs {known}")
    return found


def dialect_of(connection: Connection) -> QueueDialect:
    """Return the queue's statements for the database behind *connection*."""
    return dialect_named(connection.dialect)


__all__ = [
    "OWN_DRIVER",
    "Claimed",
    "Existing",
    "NewJob",
    "QueueDialect",
    "RenewalRow",
    "Rescued",
    "SettleRow",
    "bind_arguments",
    "dialect_named",
    "dialect_of",
    "find_dialect",
    "job_connection",
]
