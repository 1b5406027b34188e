"""The listener: hears that there is something to claim.

One connection with LISTEN. After LISTEN is active every queue is looked at once, so that
nothing that was announced before is missed. Signs of life are sent to it, with every
beat of the heartbeat, or by itself when none comes; only while their echo came lately
are notifications trusted, and the claimer polls seldom. Behind a pooler that swaps
connections the echo never comes, and it goes on polling.

Nothing here waits for an answer: a network that swallows packets without a word would
keep the thread for as long as it lasts. What is sent must be answered in
:data:`PATIENCE`, by the echo, or the connection is given up for another.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import uuid4

from sqla_jobs.dialects import dialect_named
from sqla_jobs.queue.wakeup import NEWS, channel
from sqla_jobs.worker.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    # Only for its types: without libpq it cannot even be imported.
    from psycopg import Connection
    from sqlalchemy import Engine

SIGN: Final = 10.0
"""Seconds between two signs of life, at most; a usual heartbeat is quicker."""
PATIENCE: Final = 5.0
"""Seconds within which the echo must come."""
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
        self._asked = False
        self._since = float("inf")
        self._sent = 0.0
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
        with dialect_named(self._engine.dialect).impatient():
            pooled = self._engine.raw_connection()
        driver: Any = pooled.driver_connection  # psycopg's: see own_engine
        pooled.detach()
        self._connection = driver
        driver.rollback()
        driver.autocommit = True
        self._asked = False
        # With a first sign of life, in one transaction: it hears itself.
        # A name cannot be a parameter; both are ours, letters and digits.
        self._send(driver, f'listen "{self._channel}"; {self._notify}')
        self._since = self._sent
        return self._connection

    @property
    def _notify(self) -> str:
        return f"select pg_notify('{self._channel}', '{self._token}')"

    def _send(self, connection: Connection[tuple[object, ...]], command: str) -> None:
        """Send *command* without waiting for its answer, which :meth:`_drain` reads."""
        connection.pgconn.send_query(command.encode())
        connection.pgconn.flush()
        self._asked = True
        self._sent = time.monotonic()

    def _give_sign(self, connection: Connection[tuple[object, ...]]) -> None:
        now = time.monotonic()
        if self._sent > self._heard and now - self._sent > PATIENCE:
            raise EchoMissingError
        if now - self._sent >= SIGN and not self._asked:
            self._send(connection, self._notify)

    def _wait(self, connection: Connection[tuple[object, ...]]) -> int:
        # Not longer than PATIENCE: the heartbeat may send a sign meanwhile.
        until = min(self._sent + SIGN, time.monotonic() + PATIENCE)
        if self._sent > self._heard:
            until = self._sent + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._ear, selectors.EVENT_READ)
            selector.select(max(until - time.monotonic(), 0.0) + 0.001)
        if self.stopping:
            return 0
        return self._drain(connection)

    def _drain(self, connection: Connection[tuple[object, ...]]) -> int:
        """Take in what has arrived; return how many notifications it was."""
        pgconn = connection.pgconn
        pgconn.consume_input()
        while self._asked and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                self._asked = False
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
        every = "" in hints
        if every or not self._queues.isdisjoint(hints):
            self._look()
        if every or NEWS in hints:
            self._news()
        return count

    def _echoed(self) -> None:
        first = not self.healthy()
        self._heard = time.monotonic()
        if first:
            # What was announced before LISTEN was active is found by looking.
            self._look()
            self._news()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._since = float("inf")
        if self._heard > float("-inf"):
            self._heard = float("-inf")
            # Whoever relied on us polls from now on.
            self._look()
            self._news()
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
