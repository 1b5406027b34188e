"""Telling idle workers, after the commit, that there is something to claim.

Never inside the business transaction: NOTIFY takes a lock that serialises commits of
the whole database (5,050 -> 1,870 commits/s with 16 clients), and it forbids two-phase
commit. A process-wide thread sends hints from a connection of its own: the first at
once, then at most one per :data:`SPACING`, the last one always. A lost hint costs one
poll of the worker, never a job.

SQLAlchemy has no event after the COMMIT of a connection. A Session that owns its
transaction has one (``after_commit``); for every other transaction the hint goes out at
the connection's next begin or check-in, and, while it stays out, :data:`REPEATS` after
the commit began.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event, text
from sqlalchemy.pool import Pool

from sqla_jobs.dialects import dialect_named
from sqla_jobs.models import metadata
from sqla_jobs.queue.connections import own_engine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry

logger = logging.getLogger("sqla_jobs.wakeup")

SPACING: Final = 0.020
REPEATS: Final = (0.1, 1.0)
IDLE_CLOSE: Final = 60.0
MAX_PAYLOAD: Final = 7_900
"""Bytes; the server refuses 8,000."""
_KEY: Final = "sqla_jobs.wake"


def channel(schema_translation: object = None) -> str:
    """Return the channel's name: hashed, since names are cut at 63 bytes."""
    schema = metadata.schema
    if isinstance(schema_translation, dict):
        schema = schema_translation.get(schema, schema)
    digest = hashlib.sha256((schema or "").encode()).hexdigest()[:16]
    return f"sqla_jobs_{digest}"


class Notifier:
    """Sends hints of this process: one thread, one connection per database."""

    def __init__(self) -> None:
        """Start with no thread; the first hint starts it."""
        self._condition = threading.Condition()
        # For each engine, its queues and when each hint is due (monotonic seconds).
        self._due: dict[Engine, dict[str, float]] = {}
        # Hints of commits that nobody has reported yet, by token.
        self._repeats: dict[int, tuple[list[float], Engine, frozenset[str]]] = {}
        self._tokens = itertools.count()
        self._targets: dict[Engine, _Target] = {}
        self._thread: threading.Thread | None = None
        self._closing = self._sending = False
        self._sleeps_until = 0.0

    def notify(self, engine: Engine, queues: Iterable[str]) -> None:
        """Hint workers on *engine*'s database that *queues* have work; never blocks."""
        now = time.monotonic()
        with self._condition:
            due = self._due.setdefault(engine, {})
            known = len(due)
            for queue in queues:
                due.setdefault(queue, now)
            if len(due) > known:
                self._wake_before(now)

    def repeat(self, engine: Engine, queues: Iterable[str]) -> int:
        """Hint at :data:`REPEATS` from now, unless :meth:`reported`; return a token."""
        now = time.monotonic()
        with self._condition:
            token = next(self._tokens)
            times = [now + after for after in REPEATS]
            self._repeats[token] = (times, engine, frozenset(queues))
            self._wake_before(times[0])
        return token

    def reported(self, token: int) -> None:
        """Drop the repeats of a commit that is known to be through."""
        with self._condition:
            self._repeats.pop(token, None)

    def flush(self, timeout: float = 1.0) -> None:
        """Send what is due and wait for it, at most *timeout* seconds."""
        end = time.monotonic() + timeout
        with self._condition:
            for _, engine, names in self._repeats.values():
                due = self._due.setdefault(engine, {})
                for queue in names:
                    due.setdefault(queue, 0.0)
            self._repeats.clear()
            self._closing = True
            self._condition.notify_all()
            while (self._due or self._sending) and time.monotonic() < end:
                self._condition.wait(max(0.0, end - time.monotonic()))
            self._closing = False

    def forget(self) -> None:
        """Start afresh in a forked child: the parent's thread and sockets stay its."""
        targets = self._targets
        self.__init__()  # type: ignore[misc]  # a fork copies a lock that nobody frees
        for target in targets.values():
            target.engine.dispose(close=False)

    def _wake_before(self, at: float) -> None:
        # A commit that is reported at once costs its thread no switch to ours.
        if self._thread is not None and self._sleeps_until <= at:
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="sqla_jobs.notifier", daemon=True
            )
            self._thread.start()
        self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                engine, queues = self._next()
                self._sending = True
            target = self._targets.get(engine)
            if target is None:
                target = self._targets[engine] = _Target(engine)
            target.send(queues)
            with self._condition:
                self._sending = False
                self._condition.notify_all()

    def _next(self) -> tuple[Engine, list[str]]:
        """Wait for the next hint; the condition is held."""
        while True:
            now = time.monotonic()
            for token, (times, engine, names) in list(self._repeats.items()):
                if times[0] > now:
                    continue
                due = self._due.setdefault(engine, {})
                for queue in names:
                    due.setdefault(queue, times[0])
                del times[0]
                if not times:
                    del self._repeats[token]
            waits = [times[0] - now for times, _, _ in self._repeats.values()]
            for engine in list(self._due):
                target = self._targets.get(engine)
                wait = target.sent + SPACING - now if target else 0.0
                if wait <= 0 or self._closing:
                    return engine, list(self._due.pop(engine))
                waits.append(wait)
            wait = min(waits, default=IDLE_CLOSE)
            self._sleeps_until = now + wait
            woken = self._condition.wait(wait)
            self._sleeps_until = 0.0
            if not (woken or waits):
                for target in self._targets.values():
                    target.close()


class _Target:
    """The notifier's connection to one database."""

    def __init__(self, engine: Engine) -> None:
        self.sent = 0.0
        self.engine = own_engine(engine).execution_options(isolation_level="AUTOCOMMIT")
        translation = engine.get_execution_options().get("schema_translate_map")
        self._channel = channel(translation)
        self._connection: Connection | None = None
        self._failing = False

    def send(self, queues: list[str]) -> None:
        """Send one hint; a failure closes the connection and costs a poll."""
        self.sent = time.monotonic()
        payload = ",".join(queues)
        if len(payload.encode()) > MAX_PAYLOAD:
            payload = ""  # every queue
        for last in (False, True):
            try:
                if self._connection is None:
                    self._connection = self.engine.connect()
                self._connection.execute(
                    text("select pg_notify(:channel, :payload)"),
                    {"channel": self._channel, "payload": payload},
                )
            except Exception as error:
                self.close()
                if last and not self._failing:
                    self._failing = True
                    logger.warning("wake-up hints fail, workers poll: %s", error)
            else:
                self._failing = False
                return

    def close(self) -> None:
        """Give the connection back; the next hint opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.invalidate()
            with contextlib.suppress(Exception):
                connection.close()
        with contextlib.suppress(Exception):
            self.engine.dispose()


notifier = Notifier()
atexit.register(notifier.flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=notifier.forget)


def committing(connection: Connection, queues: set[str]) -> None:
    """Remember, at the end of a commit listener, whom to wake when it is through."""
    if not queues or not dialect_named(connection.dialect).notify:
        return
    token = notifier.repeat(connection.engine, queues)
    connection.info[_KEY] = (token, connection.engine, frozenset(queues))


def failed(connection: Connection) -> None:
    """Forget the hint of a commit that the server refused."""
    hint = connection.info.pop(_KEY, None)
    if hint is not None:
        notifier.reported(hint[0])


def committed(connection: Connection) -> None:
    """Send the hint of the commit that *connection* has behind it."""
    _send(connection.info)


def _send(info: dict[Any, Any]) -> None:
    hint = info.pop(_KEY, None)
    if hint is not None:
        token, engine, queues = hint
        notifier.reported(token)
        notifier.notify(engine, queues)


@event.listens_for(Pool, "checkin")
def _on_checkin(
    connection: DBAPIConnection,  # noqa: ARG001 - SQLAlchemy's signature
    record: ConnectionPoolEntry,
) -> None:
    _send(record.info)
