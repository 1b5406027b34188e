"""The worker's right to its attempts, as this process sees it.

The database frees the jobs of a worker whose lease has run out. So a worker must stop
*before*: it trusts its lease only until ``ttl`` after the moment **before** the last
renewal was sent, less a margin. Past that it fences itself: it stops claiming, abandons
every attempt, settles nothing, and starts again under a new id. Ids are random per
start, never a host name or a process id: those come again.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from sqla_jobs.worker.errors import is_busy

if TYPE_CHECKING:
    from collections.abc import Iterator

MARGIN: Final = 1 / 6
"""The share of the ttl (5 s of 30) by which a worker stops before the database."""

# Time in which the machine was suspended must count: the database went on.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Return seconds that also pass while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """One identity of this process, from its registration until it is lost."""

    __slots__ = ("_epoch", "_waits", "id", "lost", "ttl", "until")

    def __init__(self, ttl: float) -> None:
        self.id = str(uuid4())
        self.ttl = ttl
        self.until = 0.0
        self.lost = False
        self._waits = False
        self._epoch = 0.0

    def registered(self, asked: float, monotonic: float, now: datetime) -> None:
        """Trust the lease from *asked* on; *now* was the database's time then."""
        self._epoch = now.timestamp() - monotonic
        self.renewed(asked)

    def instant(self, monotonic: float) -> datetime:
        """Return the database's time at *monotonic*; good for showing, not deciding."""
        return datetime.fromtimestamp(monotonic + self._epoch, UTC)

    def renewed(self, asked: float) -> None:
        """Trust the lease anew; *asked* is the clock before the request was sent."""
        self.until = asked + self.ttl * (1 - MARGIN)

    @contextmanager
    def in_line(self) -> Iterator[None]:
        """Do not count the time in which a renewal waits for its turn to write.

        For a database with one writer: while a renewal stands behind somebody's long
        transaction, nobody can take this worker's jobs either.
        """
        started = lease_clock()
        self._waits = True
        try:
            yield
        except Exception as error:
            if is_busy(error):
                self.until += lease_clock() - started
            raise
        finally:
            self._waits = False

    @property
    def valid(self) -> bool:
        """Whether what is done under this lease still counts."""
        return not self.lost and (self._waits or lease_clock() < self.until)
