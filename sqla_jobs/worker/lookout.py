"""The lookout: sees that there may be something to claim, where nothing announces it.

SQLite counts the commits that other connections make to a file, and a look at that
number costs some microseconds: no table is read, and nobody waits. What a commit of this
process tells comes at once (:mod:`sqla_jobs.queue.nearby`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sqla_jobs.dialects import dialect_named
from sqla_jobs.queue import nearby
from sqla_jobs.queue.wakeup import EVERY, NEWS
from sqla_jobs.worker.listener import Listener
from sqla_jobs.worker.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import Engine

INTERVAL: Final = 0.05
"""Seconds between two looks: a job of another process is seen after 25 ms in the mean,
for 0.3 % of a core (measured; half as long costs twice as much)."""
TRUSTED: Final = 5.0
"""Seconds without a look after which changes may have been missed."""


class Lookout(Service):
    """Tells the claimer when the database has changed."""

    name: ClassVar = "lookout"

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
        self._cursor: Any = None
        self._version: object = None
        self._seen = float("-inf")
        self._end: Callable[[], None] | None = None

    def healthy(self) -> bool:
        """Whether changes are known to be seen."""
        return time.monotonic() - self._seen < TRUSTED

    def run_once(self) -> int:
        """Look once; return whether something was committed since the last time."""
        if self._end is None:
            self._end = nearby.listen(self._engine, self._hear)
        try:
            if self._cursor is None:
                self._cursor = self._connect()
            version = self._cursor.execute("PRAGMA data_version").fetchone()
        except BaseException:
            self._drop()
            raise
        self._seen = time.monotonic()
        if version == self._version:
            return 0
        self._version = version
        self._look()
        return 1

    def pause(self) -> float:
        """Wait for the next look."""
        return INTERVAL

    def close(self) -> None:
        """Close what the thread looked through."""
        if self._end is not None:
            self._end()
        self._drop()

    def _hear(self, queues: Collection[str]) -> None:
        if EVERY in queues or not self._queues.isdisjoint(queues):
            self._look()
        if NEWS in queues:
            self._news()

    def _connect(self) -> Any:  # noqa: ANN401 - sqlite3's cursor
        pooled = self._engine.raw_connection()
        driver: Any = pooled.driver_connection
        pooled.detach()
        return driver.cursor()

    def _drop(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            with suppress(Exception):
                cursor.connection.close()


def listener_on(
    engine: Engine,
    queues: Collection[str],
    look: Callable[[], None],
    news: Callable[[], None],
) -> Listener | Lookout:
    """Return what calls *look* when *engine*'s database may have work for *queues*.

    And *news* when the next heartbeat should not wait: somebody was cancelled, a queue
    paused, or notifications began or ceased to arrive.
    """
    kind = Listener if dialect_named(engine.dialect).notify else Lookout
    return kind(engine, queues, look, news)
