"""The listener: hears that there is something to claim.

One connection with LISTEN. After LISTEN is active every queue is looked at once, so that
nothing that was announced before is missed. A sign of life is sent to itself every few
seconds; only while its echo came lately are notifications trusted, and the claimer polls
seldom. Behind a pooler that swaps connections the echo never comes, and it goes on
polling.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import uuid4

from sqla_jobs.queue.wakeup import channel
from sqla_jobs.worker.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    # Only for its types: without libpq it cannot even be imported.
    from psycopg import Connection
    from sqlalchemy import Engine

SIGN: Final = 15.0
"""Seconds between two signs of life."""
PATIENCE: Final = 5.0
"""Seconds within which the echo must come."""
# Names of queues are printable, so no queue can look like a sign of life.
_MARK: Final = "\x01"


class EchoMissingError(Exception):
    """What was sent to ourselves did not come back: notifications do not arrive."""


class Listener(Service):
    """Tells the claimer when queues of ours are announced."""

    name: ClassVar = "listener"

    def __init__(
        self, engine: Engine, queues: Collection[str], look: Callable[[], None]
    ) -> None:
        super().__init__()
        self._engine = engine
        self._queues = frozenset(queues)
        self._look = look
        translation = engine.get_execution_options().get("schema_translate_map")
        self._channel = channel(translation)
        self._token = _MARK + uuid4().hex
        self._connection: Connection[tuple[object, ...]] | None = None
        self._ear, self._mouth = socket.socketpair()
        self._sent = 0.0
        self._heard = float("-inf")

    def healthy(self) -> bool:
        """Whether notifications are known to arrive."""
        return time.monotonic() - self._heard < SIGN + PATIENCE

    def run_once(self) -> int:
        """Wait for notifications or the next sign of life; return how many came."""
        try:
            connection = self._connection or self._connect()
            self._give_sign(connection)
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
        pooled = self._engine.raw_connection()
        driver: Any = pooled.driver_connection  # psycopg's: see own_engine
        pooled.detach()
        self._connection = driver
        driver.rollback()
        driver.autocommit = True
        # A name cannot be a parameter; this one is ours, letters and digits.
        driver.execute(f'listen "{self._channel}"'.encode())
        self._sent = float("-inf")
        # What was announced before LISTEN was active is found by looking.
        self._look()
        return self._connection

    def _give_sign(self, connection: Connection[tuple[object, ...]]) -> None:
        now = time.monotonic()
        if now - self._sent < SIGN:
            if self._sent > self._heard and now - self._sent > PATIENCE:
                raise EchoMissingError
            return
        self._sent = now
        connection.execute("select pg_notify(%s, %s)", [self._channel, self._token])

    def _wait(self, connection: Connection[tuple[object, ...]]) -> int:
        now = time.monotonic()
        awaited = self._sent > self._heard
        until = self._sent + (PATIENCE if awaited else SIGN)
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._ear, selectors.EVENT_READ)
            selector.select(max(until - now, 0.0) + 0.001)
        if self.stopping:
            return 0
        return self._drain(connection)

    def _drain(self, connection: Connection[tuple[object, ...]]) -> int:
        count = 0
        wanted = False
        for note in connection.notifies(timeout=0):
            count += 1
            if note.payload == self._token:
                self._heard = time.monotonic()
            elif not note.payload.startswith(_MARK):
                names = note.payload.split(",")
                wanted |= names == [""] or not self._queues.isdisjoint(names)
        if wanted:
            self._look()
        return count

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if self.healthy():
            self._heard = float("-inf")
            # Whoever relied on us polls from now on.
            self._look()
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
