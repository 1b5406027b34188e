"""The threads that run sync handlers."""

from __future__ import annotations

import itertools
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqla_jobs.worker.attempts import Attempt


class SyncPool:
    """Threads that pull from one queue, started as they are needed.

    A thread that ends an attempt is given the next one of the same queue directly, so
    the hand-off is paid per burst, not per job (a future per job costs a third of the
    throughput). A thread whose attempt was abandoned is simply replaced by the next
    start; when it comes back it is one more idle thread, or ends if there are enough.
    """

    def __init__(self, run: Callable[[Attempt], Attempt | None], size: int) -> None:
        self._run = run
        self._size = size
        self._inbox: SimpleQueue[Attempt | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0
        self._numbers = itertools.count(1)
        self._closed = False

    def start(self, attempt: Attempt) -> None:
        """Run *attempt* in an idle thread, or in a new one."""
        with self._lock:
            fresh = self._idle == 0
            if fresh:
                self._count += 1
            else:
                self._idle -= 1
        # Each put is for one idle thread or for a new one: nobody else takes it.
        self._inbox.put(attempt)
        if fresh:
            threading.Thread(
                target=self._work,
                name=f"sqla-jobs-handler-{next(self._numbers)}",
                daemon=True,
            ).start()

    def close(self) -> None:
        """Let threads end when they are idle; does not wait."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._inbox.put(None)

    def _work(self) -> None:
        while True:
            attempt = self._inbox.get()
            if attempt is None:
                break
            while attempt is not None:
                attempt = self._run(attempt)
            with self._lock:
                if self._closed or self._idle >= self._size:
                    break
                self._idle += 1
        with self._lock:
            self._count -= 1
