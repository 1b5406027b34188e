"""Hearing the wake-up hints that enqueues send, as a worker hears them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import psycopg
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from sqla_jobs import NO_TENANT, Jobs, enqueue
from sqla_jobs.queue.wakeup import channel, notifier
from tests.support.enqueuing import Work
from tests.support.server import conninfo
from tests.support.waiting import wait_until

MARKER = "marker"
marker = Jobs().declare(
    "test.marker",
    input=Work,
    output=int,
    idempotency_key=lambda i: i.key,
    tenant=NO_TENANT,
    queue=MARKER,
)


class Hints:
    """Listens on a database, from the moment it is made."""

    def __init__(self, url: URL, name: str | None = None) -> None:
        self._connection = psycopg.connect(conninfo(url), autocommit=True)
        self._connection.execute(f'LISTEN "{name or channel()}"'.encode())
        self._markers = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def heard(self, timeout: float = 0.0) -> list[str]:
        """Return the queues of all hints that came, waiting *timeout* for the first."""
        queues: list[str] = []
        notes = self._connection.notifies(timeout=timeout, stop_after=1)
        for note in notes:
            queues += note.payload.split(",")
        for note in self._connection.notifies(timeout=0):
            queues += note.payload.split(",")
        return queues

    def wait_for(self, queue: str, timeout: float = 10.0) -> None:
        """Wait until a hint for *queue* comes."""
        wait_until(
            lambda: queue in self.heard(0.05), timeout, what=f"a hint for {queue!r}"
        )

    def until_quiet(self, engine: Engine) -> list[str]:
        """Return what is heard until this process has no hint left to send.

        A job of a queue of its own marks the end: its hint is the last one.
        """
        wait_until(lambda: not notifier._repeats and not notifier._due, what="no hints")
        self._markers += 1
        with Session(engine) as session, session.begin():
            enqueue(session, marker, Work(f"marker:{self._markers}"))
        queues: list[str] = []

        def marked() -> bool:
            queues.extend(self.heard(0.05))
            return MARKER in queues

        wait_until(marked, what="the marker's hint")
        return [queue for queue in queues if queue != MARKER]
