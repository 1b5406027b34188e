"""What the queue asks of a database: statements that differ, and abilities.

A statement is a template whose table names and clock are filled in once per schema
mapping, so that ``schema_translate_map`` works for text as well. Callers branch on the
abilities, never on a database's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from sqlalchemy import Table, TextClause, text, update

from sqla_jobs import clock
from sqla_jobs.models import (
    Attempt,
    Job,
    JobBody,
    JobOutput,
    Meta,
    QueueRow,
    WorkerRow,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from sqlalchemy import Connection, CursorResult, Engine
    from sqlalchemy.orm import Session
    from sqlalchemy.sql.dml import Update

    from sqla_jobs.dialects.rows import (
        Claimed,
        Existing,
        NewJob,
        RenewalRow,
        Rescued,
        SettleRow,
    )
    from sqla_jobs.exc import JobsError

_TABLES: Final = {
    label: cast("Table", mapped.__table__)
    for label, mapped in (
        ("job", Job),
        ("body", JobBody),
        ("output", JobOutput),
        ("attempt", Attempt),
        ("worker", WorkerRow),
        ("queue", QueueRow),
        ("meta", Meta),
    )
}


@lru_cache(maxsize=64)
def _names(
    quote: Callable[[str], str], translation: tuple[tuple[str | None, str | None], ...]
) -> tuple[tuple[str, str], ...]:
    schemas = dict(translation)
    names = []
    for label, table in _TABLES.items():
        schema = schemas.get(table.schema, table.schema)
        name = quote(table.name)
        names.append((label, f"{quote(schema)}.{name}" if schema else name))
    return tuple(names)


@lru_cache(maxsize=512)
def _fill(template: str, names: tuple[tuple[str, str], ...], now: str) -> TextClause:
    return text(template.format(**dict(names), now=now))


def run(
    connection: Connection, template: str, **params: object
) -> CursorResult[*tuple[Any, ...]]:
    """Execute *template* on *connection*, in whatever transaction it is in."""
    translation = connection.get_execution_options().get("schema_translate_map") or {}
    quote = connection.dialect.identifier_preparer.quote
    names = _names(quote, tuple(translation.items()))
    statement = _fill(template, names, clock.sql(connection.dialect.name))
    return connection.execute(statement, params)


def job_connection(session: Session) -> Connection:
    """Return the connection on which *session* keeps jobs, opening it if need be.

    The clause is an UPDATE: an INSERT sends some routing sessions to a replica.
    """
    return session.connection(bind_arguments=bind_arguments())


@lru_cache(maxsize=1)
def _job_update() -> Update:
    return update(Job)


def bind_arguments() -> dict[str, Any]:
    """Return the arguments with which sessions are asked where jobs live."""
    return {"mapper": Job.__mapper__, "clause": _job_update()}


class QueueDialect(ABC):
    """The statements of the queue on one kind of database."""

    name: ClassVar[str]
    skip_locked: ClassVar[bool]
    """Rows that others hold can be stepped over; without it there is one writer."""
    notify: ClassVar[bool]
    """Sessions can send and await notifications."""
    own_driver: ClassVar[str]
    """The driver of the library's own connections."""

    def arrange(self, engine: Engine) -> None:  # noqa: B027 - not every database needs it
        """Give *engine*, one of the library's own, the settings it needs."""

    def impatient(self) -> AbstractContextManager[None]:
        """Connect, in this thread, as somebody who must not wait for long."""
        return nullcontext()

    def refuse_unfit(self, connection: Connection) -> None:  # noqa: B027 - as above
        """Raise :exc:`.EngineUnsuitableError` when jobs are not safe on *connection*."""

    def refuse_unshared(self, connection: Connection) -> None:  # noqa: B027 - as above
        """Raise :exc:`.EngineUnsuitableError` when other connections see other data."""

    def begin_writing(self, connection: Connection) -> None:  # noqa: B027 - as above
        """Take the right to write, where there is one writer, for this transaction.

        Also makes sure that the database is in a transaction at all, where the driver
        begins it late.
        """

    def autocommits(self, connection: Connection) -> bool:
        """Whether each statement on *connection*, begun just now, commits by itself."""
        dbapi: Any = connection.connection.dbapi_connection
        return connection.dialect.detect_autocommit_setting(dbapi)

    def is_busy(self, error: BaseException) -> bool:  # noqa: ARG002 - nothing to look at
        """Whether *error* only says that another writer was in the way."""
        return False

    def explained(self, error: BaseException) -> JobsError | None:  # noqa: ARG002 - as above
        """Return what a database's *error* says about the engine, if it is that."""
        return None

    def bound(self, connection: Connection) -> None:  # noqa: B027 - not every database needs it
        """Bound how long this transaction may wait, run and idle, where that is a risk.

        A process that freezes inside a transaction keeps its row locks: claim and
        rescue step over them, and the jobs would be hidden for as long as it sleeps.
        """

    @abstractmethod
    def insert_jobs(self, connection: Connection, jobs: Sequence[NewJob]) -> set[str]:
        """Insert what has no duplicate, in the given order; return the new ids."""

    @abstractmethod
    def find_existing(
        self, connection: Connection, jobs: Sequence[NewJob]
    ) -> list[Existing]:
        """Return the rows that hold an identity or an id of *jobs*."""

    @abstractmethod
    def renew_jobs(
        self, connection: Connection, jobs: Sequence[tuple[str, NewJob]]
    ) -> list[Existing]:
        """Apply ``replace`` or ``rerun`` to existing ids, locked in id order."""

    @abstractmethod
    def claim(
        self,
        connection: Connection,
        *,
        worker_id: str,
        rooms: Mapping[str, int],
        limits: Mapping[str, float],
        unknown: Collection[str],
        inline: int,
    ) -> list[Claimed]:
        """Take ready jobs whose time has come, under *worker_id*'s lease."""

    @abstractmethod
    def inputs_of(self, connection: Connection, ids: Sequence[str]) -> dict[str, str]:
        """Return the inputs of *ids* as JSON text."""

    @abstractmethod
    def next_due(
        self, connection: Connection, queues: Sequence[str], unknown: Collection[str]
    ) -> float | None:
        """Return the seconds until the next job of *queues* is due."""

    @abstractmethod
    def settle(
        self,
        connection: Connection,
        *,
        worker_id: str,
        worker: str,
        rows: Sequence[SettleRow],
        wait: bool,
    ) -> set[str]:
        """Write outcomes where fence and owner match; return the accepted ids.

        With *wait* it waits for locked rows, in a transaction that goes on: from here
        on that one may idle for a moment only, as after :meth:`hold`.
        """

    @abstractmethod
    def hold(
        self, connection: Connection, *, job_id: str, fence: int, worker_id: str
    ) -> bool:
        """Lock the attempt's job row until the transaction ends, if it still owns it.

        Also bounds how long this transaction may idle from here on, where the database
        can: a process that freezes before its COMMIT must not keep the row.
        """

    @abstractmethod
    def renew(
        self,
        connection: Connection,
        *,
        worker_id: str,
        ttl: timedelta,
        running: Sequence[tuple[str, int]],
        backends: Sequence[int],
        listening: bool | None,
        stuck: int,
        sign: tuple[str, str] | None,
    ) -> RenewalRow | None:
        """Extend a valid lease and report on *running*; None when it is over.

        *sign* is sent as a notification along with it, where there are any.
        """

    @abstractmethod
    def rescue(
        self, connection: Connection, *, grace: timedelta, delay: timedelta, limit: int
    ) -> list[Rescued]:
        """Free jobs whose owner's lease or whose deadline passed *grace* ago."""

    @abstractmethod
    def end_backends(self, connection: Connection, worker_ids: Sequence[str]) -> int:
        """End server processes left over by dead workers; return how many."""
