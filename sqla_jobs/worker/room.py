"""The room that one queue has in this process.

``limit`` attempts of the queue run at a time, sync and async ones together. What is
claimed ahead waits here, better priority first; how much that is follows from how long
attempts take, so that about :data:`AHEAD` seconds of work wait: no-op jobs are claimed
hundreds at a time, slow ones only when they can start.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqla_jobs.worker.attempts import Attempt

BATCH: Final = 500
"""The most jobs of one claim or one settle statement."""
MAX_AHEAD: Final = 2 * BATCH
"""The most jobs claimed ahead: one batch running while the other is settled."""
AHEAD: Final = 0.25
"""Seconds of work that may wait in this process."""
HOLD: Final = 3.0
"""Seconds after which a job that has not started is given back."""
_WEIGHT: Final = 0.05


def _order(attempt: Attempt) -> tuple[int, object, str]:
    claim = attempt.claim
    return claim.priority, claim.run_at, claim.id


class Room:
    """Counts and keeps the attempts of one queue; see the module.

    ``claimed`` is written by the claimer's thread alone and ``settled`` by the
    settler's: their difference is read without a lock.
    """

    def __init__(self, queue: str, limit: int, prefetch: int | None = None) -> None:
        self.queue = queue
        self.limit = limit
        self.claimed = 0
        self.settled = 0
        self.busy_seconds = 0.0
        self._prefetch = prefetch
        self._lock = threading.Lock()
        self._waiting: deque[Attempt] = deque()
        self._running = 0
        self._mean: float | None = None
        self._open = True

    @property
    def running(self) -> int:
        """Attempts that run now; abandoned ones do not count."""
        return self._running

    @property
    def waiting(self) -> int:
        """Attempts that were claimed and wait for their turn."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether an attempt could start at once."""
        return self._running < self.limit and not self._waiting

    @property
    def ahead(self) -> int:
        """How many jobs to claim beyond those that can start at once."""
        if self._prefetch is not None:
            return self._prefetch
        mean = self._mean
        if mean is None or mean >= AHEAD:
            return 0
        return min(int(self.limit * AHEAD / max(mean, 1e-6)), MAX_AHEAD)

    def vacancy(self) -> int:
        """Return how many more jobs may be claimed: what is not settled takes room."""
        return self.limit + self.ahead - (self.claimed - self.settled)

    def admit(self, batch: Iterable[Attempt]) -> list[Attempt]:
        """Let *batch* wait, in order, and return the attempts that start now.

        After :meth:`close` nothing starts: then all of *batch* waits.
        """
        with self._lock:
            if self._waiting:
                # Two sorted runs: sorting merges them.
                self._waiting = deque(sorted([*self._waiting, *batch], key=_order))
            else:
                self._waiting.extend(batch)
            starting = []
            while self._open and self._waiting and self._running < self.limit:
                self._running += 1
                starting.append(self._waiting.popleft())
            return starting

    def leave(self, seconds: float | None) -> Attempt | None:
        """End a running attempt that took *seconds*; return the one that starts now.

        None for *seconds* tells nothing about how long attempts take.
        """
        with self._lock:
            if seconds is not None:
                self.busy_seconds += seconds
                mean = self._mean
                self._mean = (
                    seconds if mean is None else mean + _WEIGHT * (seconds - mean)
                )
            if self._open and self._waiting and self._running <= self.limit:
                return self._waiting.popleft()
            self._running -= 1
            return None

    def withdraw(self, attempt: Attempt) -> bool:
        """Take *attempt* out of those that wait; False when it has started."""
        with self._lock:
            try:
                self._waiting.remove(attempt)
            except ValueError:
                return False
            return True

    def overdue(self) -> list[Attempt]:
        """Take out what has waited for too long, to be given back."""
        if not self._waiting:
            return []
        before = time.monotonic() - HOLD
        with self._lock:
            late = [a for a in self._waiting if a.claimed_at < before]
            if late:
                self._waiting = deque(
                    a for a in self._waiting if a.claimed_at >= before
                )
                # The estimate was wrong: claim nothing ahead until attempts are quick.
                self._mean = max(self._mean or 0.0, HOLD)
            return late

    def close(self) -> list[Attempt]:
        """Start nothing any more; return what waited."""
        with self._lock:
            self._open = False
            waiting, self._waiting = self._waiting, deque()
            return list(waiting)
