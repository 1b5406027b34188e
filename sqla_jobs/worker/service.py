"""The one shape of every loop: a named thread around a ``run_once`` that can be called.

A service waits between two runs for its interval (with jitter, so that workers which
started together drift apart), for :meth:`Service.poke`, or for the stop request. When a
run raises, the next one comes after a growing pause that pokes do not shorten: a
database that is away, or a permission that was revoked, costs a few tries a minute and
two lines of log, one when the trouble begins or changes and one when it is over.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from typing import ClassVar, Final

from sqla_jobs.worker.errors import condition_of, is_of_the_surroundings, one_line

logger: Final = logging.getLogger("sqla_jobs.worker")

FIRST_PAUSE: Final = 0.1
"""Seconds after the first failure in a row; doubles with each further one."""


def jittered(seconds: float, share: float = 0.2) -> float:
    """Return *seconds*, more or less by a random part of up to *share*."""
    return seconds * (1 + share * (2 * random.random() - 1))  # noqa: S311 - no secret


class Service(ABC):
    """A loop in a thread of its own; see the module."""

    name: ClassVar[str]
    longest_pause: float = 30.0
    """Seconds between two tries, at most, while runs fail."""

    def __init__(self) -> None:
        self._poked = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failures = 0
        self.turned_at = time.monotonic()
        """When the loop last began or ended a run, by the monotonic clock."""
        self.worked_at = float("-inf")
        """When a run last ended without an error."""
        self._condition: str | None = None

    @abstractmethod
    def run_once(self) -> int:
        """Do a bounded piece of work; return how much was done."""

    @abstractmethod
    def pause(self) -> float:
        """Return the seconds until the next run, unless poked; 0 runs again at once."""

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Free what the loop's thread holds; runs there, after the last run."""

    def start(self) -> None:
        """Start the thread; once."""
        self._thread = threading.Thread(
            target=self._loop, name=f"sqla-jobs-{self.name}", daemon=True
        )
        self._thread.start()

    def poke(self) -> None:
        """Run as soon as possible; a poke during a run brings another one."""
        if not self._poked.is_set():
            self._poked.set()

    def stop(self, timeout: float | None = None) -> bool:
        """Ask the loop to end and wait for it; return whether it has.

        Idempotent; with *timeout* 0 it only asks. A run that hangs is left behind: the
        threads are daemons.
        """
        self._stopping.set()
        self._poked.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    @property
    def recovered(self) -> bool:
        """Whether a run without an error means that the trouble is over."""
        return True

    @property
    def stopping(self) -> bool:
        """Whether the loop was asked to end."""
        return self._stopping.is_set()

    @property
    def failing(self) -> bool:
        """Whether the last run raised."""
        return self._failures > 0

    def _loop(self) -> None:
        try:
            while not self._stopping.is_set():
                # Cleared before the run: a poke that comes during it is not lost.
                self._poked.clear()
                if self._try():
                    self._poked.wait(self.pause())
                else:
                    self._stopping.wait(self._penalty())
        finally:
            self.close()

    def _try(self) -> bool:
        self.turned_at = time.monotonic()
        try:
            done = self.run_once()
        except BaseException as error:
            # Whatever it was, also a MemoryError: a loop that dies in a process that
            # looks healthy is the worst way to fail.
            self._failures += 1
            self.turned_at = time.monotonic()
            self._note(error)
            return False
        self.turned_at = self.worked_at = time.monotonic()
        if self._failures and self.recovered:
            logger.info("%s works again, after %d failures", self.name, self._failures)
            self._failures, self._condition = 0, None
        elif done:
            logger.debug("%s: %d", self.name, done)
        return True

    def _note(self, error: BaseException) -> None:
        """Log *error* unless it is what the last run failed with as well."""
        condition = condition_of(error)
        if condition == self._condition or self._stopping.is_set():
            return
        self._condition = condition
        logger.warning(
            "%s failed and will be tried again: %s",
            self.name,
            one_line(error),
            exc_info=None if is_of_the_surroundings(error) else error,
        )

    def _penalty(self) -> float:
        doubled = FIRST_PAUSE * 2.0 ** min(self._failures - 1, 16)
        return jittered(min(doubled, self.longest_pause))
