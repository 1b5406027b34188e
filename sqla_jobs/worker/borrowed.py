"""The connections that an attempt's session holds, and how to take them away.

An attempt that was abandoned may sit inside a long statement or an idle transaction; its
row locks would block the retry. So its connections are ended: the server process is
terminated where that is permitted, else the running statement is cancelled, and the
socket is shut down.

The race is with the connection's return to its pool: ending it a moment too late hits
the next borrower (25 times of 60 without the lock). So both the check-in and the ending
take the attempt's lock: a connection is ended only while the attempt holds it, and one
that was ended is invalidated when it comes back.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine, event, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, ExceptionContext
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.orm import Session, SessionTransaction
    from sqlalchemy.pool import ConnectionPoolEntry, Pool

CANCEL_LIMIT: Final = 2.0
"""Seconds that a cancel request may take."""

# A pooler in between shows numbers that are no process of the server, or another's:
# only a session of our own role and database is ended.
_TERMINATE: Final = text(
    "select pg_terminate_backend(pid) from pg_stat_activity where pid = :pid"
    " and datname = current_database() and usename = current_user"
    " and pid <> pg_backend_pid()"
)

ROLLBACK_LIMIT: Final = 60.0
"""Seconds in which a statement that waits for its turn must have ended."""

_never: Final = threading.Event()
_watched: weakref.WeakSet[Pool] = weakref.WeakSet()
_borrowers: dict[int, Borrowed] = {}
_backends: weakref.WeakSet[Backends] = weakref.WeakSet()


class Backends:
    """The server processes that handlers' sessions use, held now or waiting in a pool.

    They are reported with the heartbeat, so that whoever rescues this worker's jobs can
    end the transactions it left open. *fresh* is called for each that was not known: a
    process that freezes before the next beat would keep its locks for ever.
    """

    def __init__(self, fresh: Callable[[], None]) -> None:
        self._fresh = fresh
        self._pids: dict[int, int] = {}
        _backends.add(self)

    def pids(self) -> list[int]:
        """Return the numbers of the server processes."""
        return list(set(self._pids.copy().values()))

    def used(self, dbapi: object, pid: int) -> None:
        """Note that a handler's session uses *dbapi*."""
        if self._pids.get(id(dbapi)) != pid:
            self._pids[id(dbapi)] = pid
            self._fresh()

    def closed(self, dbapi: object) -> None:
        """Forget *dbapi*."""
        self._pids.pop(id(dbapi), None)


class Borrowed:
    """What the session of one attempt has checked out of its pool now."""

    __slots__ = ("_backends", "_ended", "_executing", "_gate", "_held", "_lock")

    def __init__(self, backends: Backends) -> None:
        self._backends = backends
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._executing = False
        """A statement is on its way; changed and looked at behind the gate."""
        self._held: dict[int, tuple[Any, int | None]] = {}
        self._ended: BaseException | None = None

    def watch(self, session: Session) -> None:
        """Keep the books of *session* from now on."""
        event.listen(session, "after_begin", self._begun)

    def end(self, error: BaseException, engine: Engine) -> None:
        """End every connection held now, and refuse new transactions with *error*.

        Blocks for a few seconds at most, and where no server ends a transaction until
        the running statement has ended (:data:`ROLLBACK_LIMIT`). *engine* is the
        library's own.
        """
        with self._lock:
            self._ended = error
            for driver, pid in self._held.values():
                if pid is None or not _terminate(engine, pid):
                    _cancel(driver)
                _shut(driver)
                if _lives_here(driver):
                    self._roll_back(driver)

    def _begun(
        self,
        session: Session,  # noqa: ARG002 - SQLAlchemy's signature
        transaction: SessionTransaction,  # noqa: ARG002 - SQLAlchemy's signature
        connection: Connection,
    ) -> None:
        pooled = connection.connection
        dbapi = pooled.dbapi_connection
        if dbapi is None:
            return
        _watch_pool(connection.engine.pool)
        driver = pooled.driver_connection
        pid = _pid(driver)
        if pid is not None:
            self._backends.used(dbapi, pid)
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._held[id(dbapi)] = (driver, pid)
            _borrowers[id(dbapi)] = self
        if _lives_here(driver):
            # The Connection is new with each transaction of the session.
            event.listen(connection, "before_cursor_execute", self._enter)
            event.listen(connection, "after_cursor_execute", self._leave)

    def _enter(self, *_: object) -> None:
        """Begin a statement, unless the connection was ended."""
        with self._gate:
            if self._ended is not None:
                raise self._ended
            self._executing = True

    def _leave(self, *_: object) -> None:
        with self._gate:
            self._executing = False

    def _roll_back(self, driver: Any) -> None:  # noqa: ANN401 - any driver's connection
        """End a transaction that no server ends, from this thread, which is not its own.

        SQLite's keeps all others from writing for as long as its handler sleeps. Only
        between two statements: the driver begins a transaction and executes the
        statement in two steps, and one whose BEGIN is taken back in between commits by
        itself, past every fence.
        """
        until = time.monotonic() + ROLLBACK_LIMIT
        while time.monotonic() < until:
            with self._gate, suppress(Exception):
                if not self._executing:
                    driver.rollback()
                    return
                driver.interrupt()
            _never.wait(0.05)

    def _returned(self, dbapi: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        with self._lock:
            self._held.pop(id(dbapi), None)
            if self._ended is not None:
                record.invalidate()


def cut(driver: Any) -> None:  # noqa: ANN401 - any driver's connection
    """End what *driver*'s connection waits for, from another thread; takes seconds."""
    _cancel(driver)
    _shut(driver)


def _watch_pool(pool: Pool) -> None:
    if pool not in _watched:
        _watched.add(pool)
        event.listen(pool, "checkin", _checked_in)
        event.listen(pool, "close", _closed)


@event.listens_for(Engine, "handle_error")
def _failed(context: ExceptionContext) -> None:
    """A statement that raised has ended as well; there is no event after it."""
    with suppress(Exception):  # Whatever it was may have taken the connection along.
        connection = context.connection
        if connection is not None:
            borrower = _borrowers.get(id(connection.connection.dbapi_connection))
            if borrower is not None:
                borrower._leave()


def _checked_in(dbapi: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    borrower = _borrowers.pop(id(dbapi), None)
    if borrower is not None and dbapi is not None:
        borrower._returned(dbapi, record)


def _closed(dbapi: DBAPIConnection, record: ConnectionPoolEntry) -> None:  # noqa: ARG001 - SQLAlchemy's signature
    for backends in list(_backends):
        backends.closed(dbapi)


def _pid(driver: Any) -> int | None:  # noqa: ANN401 - any driver's connection
    """Return the server process behind *driver*, without asking the server."""
    with suppress(Exception):
        if hasattr(driver, "get_server_pid"):  # asyncpg
            return int(driver.get_server_pid())
        return int(driver.info.backend_pid)  # psycopg
    return None


def _terminate(engine: Engine, pid: int) -> bool:
    """End the server process *pid*; False when that is not permitted or possible."""
    try:
        with engine.connect() as connection:
            return bool(connection.scalar(_TERMINATE, {"pid": pid}))
    except Exception:
        return False


def _cancel(driver: Any) -> None:  # noqa: ANN401 - any driver's connection
    # A sync psycopg connection; an async one's statement ends with its cancelled task.
    if hasattr(driver, "cancel_safe") and not hasattr(driver, "__aenter__"):
        with suppress(Exception):
            driver.cancel_safe(timeout=CANCEL_LIMIT)


def _lives_here(driver: Any) -> bool:  # noqa: ANN401 - any driver's connection
    """Tell whether the transaction lives in this process: no server can end it."""
    return hasattr(driver, "interrupt") and not hasattr(driver, "__aenter__")


def _shut(driver: Any) -> None:  # noqa: ANN401 - any driver's connection
    """Shut the socket down, so that whoever waits for it gets an error.

    On a duplicate of the descriptor: closing the original under a thread that polls it
    would let the number be given to another file.
    """
    with suppress(Exception):
        number = driver.pgconn.socket
        with socket.socket(fileno=os.dup(number)) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
