"""A test's transaction: sessions commit into savepoints of it, and it is rolled back."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy import false, update
from sqlalchemy.orm import sessionmaker

from sqla_jobs.models import Meta
from sqla_jobs.session import JobSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

    from sqla_jobs.asyncio import AsyncJobSession

_MODE: Final = "create_savepoint"


@contextmanager
def rolled_back(engine: Engine) -> Iterator[sessionmaker[JobSession]]:
    """Give a session factory whose commits are undone when the block ends.

    Holds one connection of *engine* with a transaction around everything; sessions
    join it by savepoints, so the application commits and rolls back as ever. Give the
    factory to the application (or use ``factory.kw["bind"]``, the connection) and to
    :func:`.drain`: other connections see nothing of it.
    """
    with engine.connect() as connection:
        transaction = connection.begin()
        try:
            _really_begin(connection)
            yield sessionmaker(
                connection, class_=JobSession, join_transaction_mode=_MODE
            )
        finally:
            transaction.rollback()


@asynccontextmanager
async def rolled_back_async(
    engine: AsyncEngine,
) -> AsyncIterator[async_sessionmaker[AsyncJobSession]]:
    """Do what :func:`rolled_back` does for an async engine, on the running loop."""
    from sqlalchemy.ext.asyncio import async_sessionmaker  # noqa: PLC0415 - needs an extra

    from sqla_jobs.asyncio import AsyncJobSession  # noqa: PLC0415 - needs an extra

    async with engine.connect() as connection:
        transaction = await connection.begin()
        try:
            await connection.run_sync(_really_begin)
            yield async_sessionmaker(
                connection, class_=AsyncJobSession, join_transaction_mode=_MODE
            )
        finally:
            await transaction.rollback()


def _really_begin(connection: Connection) -> None:
    """Let the driver begin, too.

    Some begin at the first statement that writes. A savepoint before it would be the
    outermost thing there is, and its RELEASE would commit the test's rows.
    """
    connection.execute(
        update(Meta).where(false()).values(schema_version=Meta.schema_version)
    )
