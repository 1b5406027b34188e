"""The listener: hears that there is something to claim.

One connection with LISTEN. After LISTEN is active every queue is looked at once, so that
nothing that was announced before is missed. Signs of life are sent to it, with every
beat of the heartbeat; only while their echo came lately are notifications trusted, and
the claimer polls seldom. They come from another connection on purpose: behind a pooler
that swaps connections one hears itself now and then, and nobody else.

Nothing here waits for an answer: a network that swallows packets without a word would
keep the thread for as long as it lasts. What is sent must be answered in
:data:`PATIENCE`, or the connection is given up for another.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import uuid4

from sqla_jobs.dialects import dialect_named
from sqla_jobs.queue.wakeup import EVERY, NEWS, channel
from sqla_jobs.worker.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    # Only for its types: without libpq it cannot even be imported.
    from psycopg import Connection
    from sqlalchemy import Engine

SIGN: Final = 10.0
"""Seconds after which a sign of life is asked for; a usual heartbeat is quicker."""
PATIENCE: Final = 5.0
"""Seconds within which the echo must come."""
LOOK: Final = 1.0
"""Seconds between two looks at what is overdue."""
# Names of queues are printable, so no queue can look like a sign of life.
_MARK: Final = "\x01"


class EchoMissingError(ConnectionError):
    """What was sent to ourselves did not come back: notifications do not arrive."""

    def __init__(self) -> None:
        super().__init__(
            f"no notification came back within {PATIENCE:g} s, so jobs are found by "
            f"polling (a pooler in between? then give listen_url)"
        )


class ListenRefusedError(ConnectionError):
    """The server refused to let us listen."""


class Listener(Service):
    """Tells the claimer when queues of ours are announced."""

    name: ClassVar = "listener"

    longest_pause = 5.0

    def __init__(
        self,
        engine: Engine,
        queues: Collection[str],
        look: Callable[[], None],
        news: Callable[[], None],
    ) -> None:
        super().__init__()
        self._engine = engine
        self._queues = frozenset(queues)
        self._look = look
        self._news = news
        translation = engine.get_execution_options().get("schema_translate_map")
        self._channel = channel(translation)
        self._token = _MARK + uuid4().hex
        self._connection: Connection[tuple[object, ...]] | None = None
        self._ear, self._mouth = socket.socketpair()
        self._asked: float | None = None
        """When LISTEN was sent, until its answer is here."""
        self._since = float("inf")
        """When it became active."""
        self._wanted = 0.0
        """When a sign of life was asked for."""
        self._sent = float("-inf")
        self._heard = float("-inf")

    def new_sign(self) -> tuple[str, str]:
        """Return channel and payload of a sign of life that is sent now, elsewhere."""
        now = time.monotonic()
        if now > self._since:
            self._sent = max(self._sent, now)
        return self._channel, self._token

    def healthy(self) -> bool:
        """Whether notifications are known to arrive."""
        return time.monotonic() - self._heard < SIGN + PATIENCE

    @property
    def recovered(self) -> bool:
        """Whether notifications arrive again: a connection alone proves nothing."""
        return self.healthy()

    def run_once(self) -> int:
        """Wait for notifications or the next sign of life; return how many came."""
        try:
            connection = self._connection or self._connect()
            self._check()
            return self._drain(connection) or self._wait(connection)
        except BaseException:
            self._drop()
            raise

    def pause(self) -> float:
        """Go on at once: the waiting is done in :meth:`run_once`."""
        return 0.0

    def stop(self, timeout: float | None = None) -> bool:
        """End the wait as well."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._mouth.send(b"x")
        return super().stop(timeout)

    def close(self) -> None:
        """Close what the thread waited on."""
        self._drop()
        self._ear.close()
        self._mouth.close()

    def _connect(self) -> Connection[tuple[object, ...]]:
        with dialect_named(self._engine.dialect).impatient():
            pooled = self._engine.raw_connection()
        driver: Any = pooled.driver_connection  # psycopg's: see own_engine
        pooled.detach()
        connection: Connection[tuple[object, ...]] = driver
        self._connection = connection
        driver.rollback()
        driver.autocommit = True
        # A name cannot be a parameter; this one is ours, letters and digits.
        driver.pgconn.send_query(f'listen "{self._channel}"'.encode())
        driver.pgconn.flush()
        self._asked = time.monotonic()
        return connection

    def _check(self) -> None:
        """Raise when an answer or an echo is overdue; ask for a sign when it is time."""
        now = time.monotonic()
        if self._asked is not None:
            overdue = now - self._asked > PATIENCE
        else:
            overdue = self._sent > self._heard and now - self._sent > PATIENCE
            if now - max(self._sent, self._wanted) >= SIGN:
                self._wanted = now
                self._news()
        if overdue:
            raise EchoMissingError

    def _wait(self, connection: Connection[tuple[object, ...]]) -> int:
        # A sign may be sent meanwhile: it is noticed in time, and costs no statement.
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._ear, selectors.EVENT_READ)
            selector.select(LOOK)
        if self.stopping:
            return 0
        return self._drain(connection)

    def _drain(self, connection: Connection[tuple[object, ...]]) -> int:
        """Take in what has arrived; return how many notifications it was."""
        pgconn = connection.pgconn
        pgconn.consume_input()
        while self._asked is not None and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                self._active()
            elif result.error_message:
                raise ListenRefusedError(result.error_message.decode(errors="replace"))
        count = 0
        hints: set[str] = set()
        while (note := pgconn.notifies()) is not None:
            count += 1
            payload = note.extra.decode(errors="replace")
            if payload == self._token:
                self._echoed()
            elif not payload.startswith(_MARK):
                hints.update(payload.split(","))
        every = EVERY in hints
        if every or not self._queues.isdisjoint(hints):
            self._look()
        if every or NEWS in hints:
            self._news()
        return count

    def _active(self) -> None:
        self._asked = None
        self._since = self._wanted = time.monotonic()
        # What was announced before is found by looking.
        self._look()
        self._news()

    def _echoed(self) -> None:
        first = not self.healthy()
        self._heard = time.monotonic()
        if first:
            self._news()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        # A sign that was sent before the next LISTEN is active will not come back.
        self._since, self._sent = float("inf"), float("-inf")
        if self._heard > float("-inf"):
            self._heard = float("-inf")
            # Whoever relied on us polls from now on.
            self._look()
            self._news()
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
