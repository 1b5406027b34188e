"""How connections behave: which of the application's can work, and what ours do.

The driver's default mode begins a transaction before the first INSERT, UPDATE or DELETE
and so with a write, which waits its turn (the busy time-out). A transaction that begins
with a read (``BEGIN`` from a listener, ``autocommit=False``) cannot wait when it writes
later: somebody else wrote since, what it has read is out of date, and SQLite refuses it
at once (SQLITE_BUSY_SNAPSHOT). So those are refused, unless they begin with
``BEGIN IMMEDIATE``.

In the default mode a SAVEPOINT begins no transaction first, becomes the transaction
itself, and its RELEASE commits: what is inside would outlive the rollback of the outer
one. So a transaction that may keep jobs is begun before its first savepoint. Where
nobody could know that in time (a plain Session whose first job comes inside its first
savepoint) the job is refused.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, OperationalError

from sqla_jobs.exc import EngineUnsuitableError

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry, Pool

OLDEST: Final = (3, 38)
"""The first version with the ``->>`` operator."""
PATIENCE: Final = 30.0
"""Seconds that our own part of a transaction waits for its turn to write."""
OWN_TIMEOUT: Final = 10_000
"""Milliseconds that one statement on our own connections waits for its turn."""

IMMEDIATE: Final = (
    "leave transactions to the driver's default mode, or begin them with a listener: "
    "@event.listens_for(engine, 'begin') ... "
    "connection.exec_driver_sql('BEGIN IMMEDIATE')"
)
_DEFERRED: Final = re.compile(
    r"\s*begin(\s+deferred)?(\s+transaction)?\s*;?\s*", re.IGNORECASE
)
_BUSY: Final = 5
_READONLY: Final = 8
_BUSY_SNAPSHOT: Final = 517
_LEGACY: Final = -1
"""``sqlite3.LEGACY_TRANSACTION_CONTROL``, which Python 3.11 does not know."""
_WAITED: Final = "sqla_jobs.waited"

_never: Final = threading.Event()
_first: WeakKeyDictionary[Pool, str] = WeakKeyDictionary()
"""The first statement of the first transaction that was seen of each pool."""
_loose: WeakSet[Connection] = WeakSet()
"""Connections whose outermost savepoint is the whole transaction."""


def driver_of(connection: Connection) -> Any:  # noqa: ANN401 - sqlite3's, or a double's
    """Return the ``sqlite3`` connection of *connection*, also under aiosqlite."""
    driver = connection.connection.driver_connection
    return getattr(driver, "_conn", driver)


def in_transaction(connection: Connection) -> bool:
    """Whether the database is in a transaction, whatever SQLAlchemy thinks."""
    return bool(driver_of(connection).in_transaction)


def autocommits(connection: Connection) -> bool:
    """Whether each statement on *connection*, begun just now, commits by itself."""
    driver = driver_of(connection)
    # With isolation_level None a listener may have begun the transaction.
    return driver.isolation_level is None and not driver.in_transaction


def begin_writing(connection: Connection) -> None:
    """Begin the transaction, with its right to write, where nothing has begun it yet."""
    if in_transaction(connection):
        return
    started = time.monotonic()
    _begin_immediate(connection, started + PATIENCE)
    _loose.discard(connection)
    connection.info[_WAITED] = time.monotonic() - started


def waited(connection: Connection) -> float:
    """Return how many seconds *connection* waited when it began to write."""
    return float(connection.info.get(_WAITED, 0.0))


def _begin_immediate(connection: Connection, until: float) -> None:
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except OperationalError as error:
            # It has waited as long as the connection's own time-out says; more often
            # than not that is 5 seconds, and an import may take longer.
            if not is_busy(error) or time.monotonic() >= until:
                raise
            _never.wait(0.01)
        else:
            return


# --- errors --------------------------------------------------------------------------


def code_of(error: BaseException) -> int:
    """Return SQLite's extended result code of *error*; 0 when it has none."""
    orig = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(orig, "sqlite_errorcode", 0)
    return code if isinstance(code, int) else 0


def is_busy(error: BaseException) -> bool:
    """Whether somebody else was writing: the same again may work."""
    return code_of(error) & 0xFF == _BUSY


def explained(error: BaseException) -> EngineUnsuitableError | None:
    """Return what *error* says about the engine, where that is a thing to repair."""
    code = code_of(error)
    if code == _BUSY_SNAPSHOT:
        return EngineUnsuitableError(
            "This transaction began with a read, and SQLite refuses to let it write "
            "because another one has written since",
            IMMEDIATE,
        )
    if code & 0xFF == _READONLY:
        return EngineUnsuitableError(
            "The SQLite database is read-only, and a queue writes all the time",
            "open it without mode=ro or immutable=1, and let this user write to the "
            "file and to its folder",
        )
    return None


# --- the application's engines -------------------------------------------------------


def refuse_unfit(connection: Connection) -> None:
    """Raise :exc:`.EngineUnsuitableError` when jobs would not be safe on *connection*.

    Emits nothing: judged by the driver's settings, and by the statement with which a
    transaction of this pool was once seen to begin.
    """
    version = getattr(connection.dialect.dbapi, "sqlite_version_info", OLDEST)
    if version < OLDEST:
        found, oldest = (".".join(map(str, v)) for v in (version, OLDEST))
        raise EngineUnsuitableError(
            f"This is SQLite {found}, and the queue needs {oldest} or newer",
            "use a Python that is built with a newer one (sqlite3.sqlite_version)",
        )
    mode = getattr(driver_of(connection), "autocommit", _LEGACY)
    if mode != _LEGACY:
        raise EngineUnsuitableError(
            f"The engine connects with autocommit={bool(mode)}, "
            + (
                "so COMMIT and ROLLBACK do nothing"
                if mode
                else "so transactions begin deferred, and a COMMIT that writes after "
                "a read can fail at once with 'database is locked'"
            ),
            IMMEDIATE,
        )
    if _DEFERRED.fullmatch(_first.get(connection.engine.pool, "")):
        raise EngineUnsuitableError(
            "The engine begins transactions with a deferred BEGIN, and one that reads "
            "first and writes later can fail at once with 'database is locked'",
            IMMEDIATE,
        )
    if connection in _loose and connection.in_nested_transaction():
        raise EngineUnsuitableError(
            "In the driver's default mode this transaction's first savepoint commits "
            "when it is released, so a job inside it would survive the rollback of "
            "the transaction",
            "use a JobSession, which begins the transaction in time, or begin every "
            "one with a listener: @event.listens_for(engine, 'begin') ... "
            "connection.exec_driver_sql('BEGIN IMMEDIATE')",
        )


def refuse_memory(connection: Connection) -> None:
    """Raise :exc:`.EngineUnsuitableError` for a database that only one thread sees."""
    names = connection.exec_driver_sql("PRAGMA database_list").all()
    if any(row[1] == "main" and not row[2] for row in names):
        raise EngineUnsuitableError(
            "The database is in memory, so each connection of a worker would see "
            "another, empty one",
            "give a file: create_engine('sqlite:///jobs.db')",
        )


@event.listens_for(Engine, "begin")
def _on_begin(connection: Connection) -> None:
    if connection.dialect.name != SQLITE:
        return
    _loose.discard(connection)
    pool = connection.engine.pool
    if pool in _first:
        return
    _first[pool] = ""

    def note(
        connection: Connection,  # noqa: ARG001 - SQLAlchemy's signature
        cursor: object,  # noqa: ARG001 - SQLAlchemy's signature
        statement: str,
        *rest: object,  # noqa: ARG001 - SQLAlchemy's signature
    ) -> None:
        _first[pool] = _first[pool] or statement[:40]

    # A listener of the application's that begins the transaction runs after this one,
    # and what it emits is the first statement.
    event.listen(connection, "before_cursor_execute", note)


@event.listens_for(Engine, "savepoint")
def _on_savepoint(connection: Connection, name: str | None) -> None:  # noqa: ARG001 - SQLAlchemy's signature
    if connection.dialect.name != SQLITE or connection.in_nested_transaction():
        return
    if in_transaction(connection):
        _loose.discard(connection)
    else:
        _loose.add(connection)


# --- our own engines -----------------------------------------------------------------

SQLITE: Final = "sqlite"


def arrange(engine: Engine) -> None:
    """Make *engine*, one of our own, wait its turn and write at once."""
    event.listen(engine, "connect", _on_own_connect)
    event.listen(engine, "begin", _on_own_begin)


def _on_own_connect(
    connection: DBAPIConnection,
    record: ConnectionPoolEntry,  # noqa: ARG001 - SQLAlchemy's signature
) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout = {OWN_TIMEOUT}")
        # What a power failure may take is the end of the log: a claim or a settle,
        # never a commit of the application's that came after it.
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA journal_mode")
        row = cursor.fetchone()
        if row is not None and row[0] not in ("wal", "memory"):
            # It stays in the file. While somebody else is in the way it can wait: all
            # works without it, only readers and the writer block each other.
            try:
                cursor.execute("PRAGMA journal_mode = WAL")
            except Exception as error:
                if not is_busy(error) and code_of(error) & 0xFF != _READONLY:
                    raise
    finally:
        cursor.close()


def _on_own_begin(connection: Connection) -> None:
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        begin_writing(connection)
