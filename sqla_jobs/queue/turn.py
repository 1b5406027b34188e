"""Taking turns, where a database has one writer: before anything of ours is written.

A transaction that may carry jobs takes its right to write before its first savepoint and
before our first statement. Where rows are locked one by one all of this does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from sqla_jobs.dialects import dialect_of, find_dialect

if TYPE_CHECKING:
    from sqlalchemy import Connection


def take_turn(connection: Connection) -> None:
    """Wait for the right to write on *connection*; held until its transaction ends.

    :raises EngineUnsuitableError: jobs would not be safe in this transaction.
    """
    dialect = dialect_of(connection)
    dialect.refuse_unfit(connection)
    dialect.begin_writing(connection)


def before_savepoint(connection: Connection) -> None:
    """Begin the transaction in the database, where the savepoint would be all of it."""
    dialect = find_dialect(connection.dialect)
    if dialect is not None:
        dialect.begin_writing(connection)


def raise_explained(connection: Connection, error: BaseException) -> NoReturn:
    """Raise *error*, or what it means where our words say more than the database's."""
    explained = dialect_of(connection).explained(error)
    if explained is not None:
        raise explained from error
    raise error
