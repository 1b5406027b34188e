"""Stopping: a fixed order of phases, each bounded, so that it never hangs.

1. Claim no more. 2. Give back what has not started: that attempt is not counted.
3. Wait for running attempts, at most ``grace``. 4. Ask them to end; what ends then is
interrupted, and not counted either. 5. Write what is left to write. 6. Expire the
lease, so that whatever still runs is rescued at once, by others.

The heartbeat goes on until the end: an attempt that takes its grace keeps its job. A
second signal skips to the next phase, at each of them. With the database away every
phase ends by its limit, and the lease runs out by itself.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from sqla_jobs.exc import LeaseLostError
from sqla_jobs.queue.outcome import Released
from sqla_jobs.worker.ending import Mark
from sqla_jobs.worker.service import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqla_jobs.worker.engine import Parts

LOOK: Final = 0.01
CLAIM_LIMIT: Final = 5.0
"""Seconds that a claim on its way may take to come back."""
END_LIMIT: Final = 5.0
"""Seconds in which attempts that were asked to end may do so."""
FLUSH_LIMIT: Final = 10.0
LEASE_LIMIT: Final = 5.0
LEAVE_LIMIT: Final = 10.0
"""Seconds that the lifespan may take to give its resources back."""


class Shutdown:
    """One run through the phases; see the module."""

    def __init__(self, parts: Parts, hurry: Callable[[], int]) -> None:
        self._parts = parts
        self._hurry = hurry
        self._never = threading.Event()

    def run(self) -> None:
        """Go through all phases; blocks until the last one is over."""
        parts = self._parts
        started = time.monotonic()
        parts.claimer.stop(0)
        self._give_back()
        if not parts.claimer.stop(CLAIM_LIMIT):
            logger.warning(
                "a claim is still on its way; what it brings will be rescued"
            )
        # What that last claim brought did not start: its rooms are closed.
        self._give_back()
        if not self._until(self._all_ended, parts.config.grace):
            self._interrupt()
            if not self._until(self._all_ended, min(END_LIMIT, parts.config.grace)):
                self._abandon()
        parts.listener.stop(0)
        parts.rescuer.stop(0)
        parts.janitor.stop(0)
        if not self._until(lambda: parts.settler.backlog == 0, FLUSH_LIMIT):
            logger.warning(
                "%d outcomes could not be written: those jobs will run again",
                parts.settler.backlog,
            )
        self._bounded("expiring the lease", LEASE_LIMIT, self._end_lease)
        self._bounded("the lifespan", LEAVE_LIMIT, self._leave)
        if not parts.executor.close(END_LIMIT):
            logger.warning("the handlers' loop does not end: a handler blocks it")
        for service in parts.services():
            service.stop(0)
        for service in parts.services():
            service.stop(1.0)
        parts.dispose()
        logger.info(
            "stopped after %.1f s: %s", time.monotonic() - started, parts.snapshot()
        )

    def _until(self, reached: Callable[[], bool], limit: float) -> bool:
        """Wait until *reached*, the *limit*, or the next signal."""
        before = self._hurry()
        end = time.monotonic() + limit
        while not reached():
            if time.monotonic() >= end or self._hurry() != before:
                return False
            self._never.wait(LOOK)
        return True

    def _all_ended(self) -> bool:
        return len(self._parts.attempts) == 0

    def _give_back(self) -> None:
        parts = self._parts
        count = 0
        for room in parts.rooms.values():
            for attempt in room.close():
                count += parts.executor.end_waiting(attempt, Released())
        if count:
            logger.info("gave back %d jobs that had not started", count)

    def _interrupt(self) -> None:
        live = self._parts.attempts.live()
        logger.warning("asking %d running attempts to end", len(live))
        for attempt in live:
            attempt.interrupted = not attempt.state.cancelled
            attempt.state.cancel_reason = (
                attempt.state.cancel_reason or "the worker is being stopped"
            )
            attempt.state.cancelled = True
            self._parts.executor.cancel_task(attempt)

    def _abandon(self) -> None:
        live = self._parts.attempts.live()
        names = sorted({a.claim.name for a in live})
        logger.warning(
            "leaving %d attempts behind that do not end (%s): other workers will "
            "rescue their jobs",
            len(live),
            ", ".join(names),
        )
        for attempt in live:
            error = LeaseLostError(attempt.claim.id, attempt.claim.fence)
            self._parts.executor.abandon(attempt, error, Mark.STALE)

    def _end_lease(self) -> None:
        parts = self._parts
        # First: else the next beat would find the lease gone and start a new one.
        parts.watchdog.stop(1.0)
        parts.heartbeat.stop(LEASE_LIMIT)
        parts.heartbeat.expire()

    def _leave(self) -> None:
        self._parts.resources.leave(self._parts.runner, LEAVE_LIMIT)

    @staticmethod
    def _bounded(what: str, limit: float, step: Callable[[], None]) -> None:
        """Run *step* in a thread and wait for it, at most *limit* seconds."""

        def run() -> None:
            try:
                step()
            except Exception as error:
                logger.warning("%s failed: %s", what, error)

        thread = threading.Thread(target=run, name="sqla-jobs-stop", daemon=True)
        thread.start()
        thread.join(limit)
        if thread.is_alive():
            logger.warning("%s takes longer than %g s: left behind", what, limit)
