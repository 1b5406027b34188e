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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import event, text
from sqlalchemy.pool import Pool

from sqla_jobs.dialects import dialect_named
from sqla_jobs.models import metadata
from sqla_jobs.queue import nearby
from sqla_jobs.queue.connections import own_engine, root_engine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry

logger = logging.getLogger("sqla_jobs.wakeup")

SPACING: Final = 0.020
REPEATS: Final = (0.1, 1.0)
IDLE_CLOSE: Final = 60.0
MAX_PAYLOAD: Final = 7_900
"""Bytes; the server refuses 8,000."""
NEWS: Final = "\x02news"
"""Among the queues of a hint: a cancel or a pause waits for the next heartbeat. Names
of queues are printable."""
EVERY: Final = ""
"""Among the queues of a hint: all of them."""
_KEY: Final = "sqla_jobs.wake"


def channel(schema_translation: object = None) -> str:
    """Return the channel's name: hashed, since names are cut at 63 bytes."""
    schema = metadata.schema
    if isinstance(schema_translation, dict):
        schema = schema_translation.get(schema, schema)
    digest = hashlib.sha256((schema or "").encode()).hexdigest()[:16]
    return f"sqla_jobs_{digest}"


class Place(NamedTuple):
    """Where hints go: a database, by the engine that leads there, and a channel."""

    engine: Engine
    channel: str

    @classmethod
    def of(cls, connection: Connection) -> Place:
        """Return where workers listen for the jobs that *connection* writes."""
        return cls._at(connection.engine, connection.get_execution_options())

    @classmethod
    def at(cls, engine: Engine) -> Place:
        """Return where workers listen for the jobs that *engine*'s connections write."""
        return cls._at(engine, engine.get_execution_options())

    @classmethod
    def _at(cls, engine: Engine, options: Mapping[str, object]) -> Place:
        # Engines made by execution_options(), maybe one per request, lead to one place.
        return cls(root_engine(engine), channel(options.get("schema_translate_map")))


class Notifier:
    """Sends hints of this process: one thread, one connection per place."""

    def __init__(self) -> None:
        """Start with no thread; the first hint starts it."""
        self._condition = threading.Condition()
        # The queues that are to be hinted at.
        self._due: dict[Place, set[str]] = {}
        # Hints of commits that nobody has reported yet, by token.
        self._repeats: dict[int, tuple[list[float], Place, frozenset[str]]] = {}
        self._tokens = itertools.count()
        self._targets: dict[Place, _Target | _Nearby] = {}
        self._thread: threading.Thread | None = None
        self._closing = self._sending = False
        self._sleeps_until = 0.0

    def notify(self, place: Place, queues: Iterable[str]) -> None:
        """Hint workers at *place* that *queues* have work; never blocks."""
        with self._condition:
            due = self._due.setdefault(place, set())
            known = len(due)
            due.update(queues)
            if len(due) > known:
                self._wake_before(time.monotonic())

    def repeat(self, place: Place, queues: Iterable[str]) -> int:
        """Hint at :data:`REPEATS` from now, unless :meth:`reported`; return a token."""
        now = time.monotonic()
        with self._condition:
            token = next(self._tokens)
            times = [now + after for after in REPEATS]
            self._repeats[token] = (times, place, frozenset(queues))
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
            for _, place, names in self._repeats.values():
                self._due.setdefault(place, set()).update(names)
            self._repeats.clear()
            self._closing = True
            self._condition.notify_all()
            while (
                (self._due or self._sending)
                and self._thread is not None
                and self._thread.is_alive()
                and time.monotonic() < end
            ):
                self._condition.wait(max(0.0, end - time.monotonic()))
            self._closing = False

    def forget(self) -> None:
        """Start afresh in a forked child: the parent's thread and sockets stay its."""
        targets = self._targets
        self.__init__()  # type: ignore[misc]  # a fork copies a lock that nobody frees
        _inherited.extend(targets.values())

    def _wake_before(self, at: float) -> None:
        # A commit that is reported at once costs its thread no switch to ours.
        if self._thread is not None and self._sleeps_until <= at:
            return
        if self._thread is None:
            thread = threading.Thread(
                target=self._run, name="sqla_jobs.notifier", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                return  # The interpreter is ending; this runs inside of a commit.
            self._thread = thread
        self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                place, queues = self._next()
                self._sending = True
            try:
                target = self._targets.get(place)
                if target is None:
                    kind = _Target if _carried(place.engine) else _Nearby
                    target = self._targets[place] = kind(place)
                target.send(queues)
            except Exception:
                # This thread serves the whole process: one strange engine costs its
                # workers a poll, not all others their hints.
                logger.exception("wake-up hints fail, workers poll")
            with self._condition:
                self._sending = False
                self._condition.notify_all()

    def _next(self) -> tuple[Place, set[str]]:
        """Wait for the next hint; the condition is held."""
        while True:
            now = time.monotonic()
            for token, (times, place, names) in list(self._repeats.items()):
                if times[0] > now:
                    continue
                self._due.setdefault(place, set()).update(names)
                del times[0]
                if not times:
                    del self._repeats[token]
            waits = [times[0] - now for times, _, _ in self._repeats.values()]
            for place in list(self._due):
                target = self._targets.get(place)
                wait = target.sent + SPACING - now if target else 0.0
                if wait <= 0 or self._closing:
                    return place, self._due.pop(place)
                waits.append(wait)
            for place, target in list(self._targets.items()):
                # Engines come and go, in a suite of tests by the thousand.
                if target.sent + IDLE_CLOSE <= now:
                    target.close()
                    del self._targets[place]
            wait = min(waits, default=IDLE_CLOSE)
            self._sleeps_until = now + wait
            self._condition.wait(wait)
            self._sleeps_until = 0.0


class _Target:
    """The notifier's connection to one place."""

    def __init__(self, place: Place) -> None:
        self.sent = 0.0
        self._engine = own_engine(place.engine).execution_options(
            isolation_level="AUTOCOMMIT"
        )
        self._channel = place.channel
        self._connection: Connection | None = None
        self._failing = False

    def send(self, queues: set[str]) -> None:
        """Send one hint; a failure closes the connection and costs a poll."""
        self.sent = time.monotonic()
        payload = ",".join(queues)
        if len(payload.encode()) > MAX_PAYLOAD:
            payload = EVERY
        for last in (False, True):
            try:
                if self._connection is None:
                    self._connection = self._engine.connect()
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
            self._engine.dispose()


class _Nearby:
    """The workers of this process, where the database carries no hints."""

    def __init__(self, place: Place) -> None:
        self.sent = 0.0
        self._engine = place.engine

    def send(self, queues: set[str]) -> None:
        """Send one hint."""
        self.sent = time.monotonic()
        nearby.hint(self._engine, queues)

    def close(self) -> None:
        """Hold nothing."""


def _carried(engine: Engine) -> bool:
    return dialect_named(engine.dialect).notify


_inherited: Final[list[_Target | _Nearby]] = []
"""What a forked child must neither use nor close: the sockets are its parent's."""
notifier = Notifier()
atexit.register(notifier.flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=notifier.forget)


def committing(connection: Connection, queues: set[str]) -> None:
    """Remember, at the end of a commit listener, whom to wake when it is through."""
    if not queues:
        return
    if not _carried(connection.engine) and not nearby.is_heard(connection.engine):
        return
    failed(connection)  # A listener enqueued after ours had run: once is enough.
    place = Place.of(connection)
    token = notifier.repeat(place, queues)
    connection.info[_KEY] = (token, place, frozenset(queues))


def announce(engine: Engine, queues: Iterable[str]) -> None:
    """Hint workers at *engine*'s database; for what became ready without an enqueue."""
    notifier.notify(Place.at(engine), queues)


def failed(connection: Connection) -> None:
    """Forget the hint of *connection*, whose commit the server refused."""
    hint = connection.info.pop(_KEY, None)
    if hint is not None:
        notifier.reported(hint[0])


def committed(connection: Connection) -> None:
    """Send the hint of the commit that *connection* has behind it."""
    _send(connection.info)


def _send(info: dict[Any, Any]) -> None:
    hint = info.pop(_KEY, None)
    if hint is not None:
        token, place, queues = hint
        notifier.reported(token)
        notifier.notify(place, queues)


@event.listens_for(Pool, "checkin")
def _on_checkin(
    connection: DBAPIConnection,  # noqa: ARG001 - SQLAlchemy's signature
    record: ConnectionPoolEntry,
) -> None:
    _send(record.info)
