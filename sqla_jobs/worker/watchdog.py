"""The watchdog: looks at every attempt four times a second.

Timeouts are kept by one map that is looked through, not by a timer per job: that costs
a microsecond per job instead of ten. The worker's own lease is watched here too, because
the heartbeat's thread may itself hang in a request to a database that does not answer.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, ClassVar, Final

from sqla_jobs.queue.outcome import Released
from sqla_jobs.worker.service import Service, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlalchemy import Engine

    from sqla_jobs.worker.attempts import Attempt, Attempts
    from sqla_jobs.worker.door import Door
    from sqla_jobs.worker.executor import Executor
    from sqla_jobs.worker.lease import Lease
    from sqla_jobs.worker.room import Room

TICK: Final = 0.25
STUCK_FOR: Final = 30.0
"""Seconds after which an abandoned attempt counts as one that never comes back."""
FEWEST_STUCK: Final = 5
STUBBORN: Final = 1.0
"""Seconds that a cancelled async handler is given before its connections are ended."""


class Watchdog(Service):
    """Ends what runs too long, gives back what waits too long."""

    name: ClassVar = "watchdog"
    longest_pause = 1.0

    def __init__(
        self,
        attempts: Attempts,
        rooms: Iterable[Room],
        executor: Executor,
        engine: Engine,
        *,
        doors: Iterable[Door],
        lease: Callable[[], Lease | None],
        fence: Callable[[Lease], None],
        too_many_stuck: Callable[[int], None],
    ) -> None:
        super().__init__()
        self._attempts = attempts
        self._rooms = list(rooms)
        self._executor = executor
        self._engine = engine
        self._doors = doors
        self._lease = lease
        self._fence = fence
        self._too_many_stuck = too_many_stuck
        # Each was replaced, so this many doubles the worker's threads.
        self._most_stuck = max(sum(r.limit for r in self._rooms), FEWEST_STUCK)
        self._ended: set[Attempt] = set()
        self._reported = 0

    def run_once(self) -> int:
        """Look once; return how many attempts were ended or given back."""
        lease = self._lease()
        if lease is not None and not lease.valid:
            self._fence(lease)
        done = self._end_overdue()
        done += self._give_back()
        self._end_connections()
        self._end_silences()
        self._report_stuck()
        return done

    def pause(self) -> float:
        """Wait for the next tick."""
        return TICK

    def _end_overdue(self) -> int:
        now = time.monotonic()
        done = 0
        for attempt in self._attempts.live():
            deadline = attempt.deadline
            if deadline is not None and deadline < now:
                done += self._executor.time_out(attempt)
            elif attempt.cancel_task_at is not None and attempt.cancel_task_at < now:
                attempt.cancel_task_at = None
                self._executor.cancel_task(attempt)
        return done

    def _give_back(self) -> int:
        done = 0
        for room in self._rooms:
            for attempt in room.overdue():
                done += self._executor.end_waiting(attempt, Released())
        return done

    def _end_connections(self) -> None:
        """End the connections of abandoned attempts: their locks block the retry."""
        stuck = self._attempts.stuck()
        self._ended.intersection_update(stuck)
        late = set(self._attempts.stuck(longer_than=STUBBORN))
        for attempt in stuck:
            if attempt in self._ended or attempt.borrowed is None:
                continue
            if attempt.spec.is_async and attempt not in late:
                continue  # Its cancelled task closes them itself, if it can.
            self._ended.add(attempt)
            error = attempt.state.abort
            assert error is not None  # noqa: S101 - it was abandoned
            # It may take seconds, with the attempt's lock held: not in this thread.
            threading.Thread(
                target=attempt.borrowed.end,
                args=(error, self._engine),
                name="sqla-jobs-end",
                daemon=True,
            ).start()

    def _end_silences(self) -> None:
        """Cut connections of the engine itself whose answers do not come."""
        for door in self._doors:
            if door.is_silent:
                # It asks the server first, which may be what does not answer.
                threading.Thread(
                    target=door.end_silence, name="sqla-jobs-cut", daemon=True
                ).start()

    def _report_stuck(self) -> None:
        stuck = self._attempts.stuck(longer_than=STUBBORN)
        if len(stuck) > self._reported:
            names = sorted({a.claim.name for a in stuck})
            logger.warning(
                "%d abandoned attempts have not come back (%s): their threads stay "
                "busy until the handlers return",
                len(stuck),
                ", ".join(names),
            )
        self._reported = len(stuck)
        for_good = len(self._attempts.stuck(longer_than=STUCK_FOR))
        if for_good >= self._most_stuck:
            self._too_many_stuck(for_good)
