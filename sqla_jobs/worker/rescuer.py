"""The rescuer: frees jobs of workers that are gone, and removes what is old.

Every worker has both loops and none is the leader: the statements step over what others
hold, and the intervals are jittered.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Final

from sqla_jobs.queue.renew import reap_workers
from sqla_jobs.queue.rescue import BATCH, end_backends, rescue
from sqla_jobs.queue.retention import RetentionRules, prune
from sqla_jobs.worker.dead_letters import tell
from sqla_jobs.worker.service import Service, jittered, logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session

    from sqla_jobs.declare.registry import Jobs
    from sqla_jobs.queue.rescue import Rescued
    from sqla_jobs.queue.retention import Place
    from sqla_jobs.worker.door import Door
    from sqla_jobs.worker.stats import Stats

INTERVAL: Final = 7.0
"""Seconds between two looks, at most; a shorter lease wants them sooner."""
GRACE: Final = timedelta(seconds=2)
"""How long past its lease, or its deadline, an attempt is left alone."""
DELAY: Final = timedelta(0)
"""How long a rescued job waits for its next attempt."""
LOST: Final = "worker lost: its lease ran out while the attempt ran"
OVERDUE: Final = "the deadline passed and the worker did not end the attempt"

PRUNE_INTERVAL: Final = 60.0
PRUNE_BATCH: Final = 1000
WORKERS_KEPT: Final = timedelta(days=1)
"""How long the row of a worker that is gone can still be looked at."""


class Rescuer(Service):
    """Frees what dead workers and passed deadlines hold."""

    name: ClassVar = "rescuer"
    longest_pause = 10.0

    def __init__(
        self,
        door: Door,
        jobs: Jobs,
        stats: Stats,
        *,
        ttl: float,
        freed: Callable[[], None],
    ) -> None:
        super().__init__()
        self._door = door
        self._jobs = jobs
        self._stats = stats
        self._freed = freed
        self._interval = min(INTERVAL, ttl / 2)
        self._more = False
        self._tells = any(s.on_dead is not None for s in jobs.specs.values())

    def run_once(self) -> int:
        """Free at most one batch; return how many jobs it was."""
        if self._tells:
            self._door.close()
            rescued = self._door.transaction(self._rescue)
        else:
            rescued = self._door.run(rescue, grace=GRACE, delay=DELAY)
        self._more = len(rescued) >= BATCH
        if not rescued:
            return 0
        self._stats.rescued += len(rescued)
        workers = sorted({r.worker_id for r in rescued if not r.timed_out})
        logger.warning(
            "rescued %d jobs%s",
            len(rescued),
            f" of workers {workers}" if workers else "",
        )
        self._freed()
        if workers:
            self._end_backends(workers)
        return len(rescued)

    def pause(self) -> float:
        """Wait for the interval, unless there is more."""
        return 0.0 if self._more else jittered(self._interval, 0.3)

    def close(self) -> None:
        """Give the connection back."""
        self._door.close()

    def _rescue(self, session: Session) -> list[Rescued]:
        rescued = rescue(session, grace=GRACE, delay=DELAY)
        for each in rescued:
            spec = self._jobs.get(each.name)
            if spec is not None:
                tell(session, spec, each.id, OVERDUE if each.timed_out else LOST)
        return rescued

    def _end_backends(self, workers: list[str]) -> None:
        try:
            ended = self._door.transaction(end_backends, workers)
        except Exception as error:
            logger.warning(
                "transactions of lost workers may hold locks for a while, they cannot "
                "be ended: %s",
                error,
            )
            return
        if ended:
            logger.warning("ended %d transactions of lost workers", ended)


class Janitor(Service):
    """Removes finished jobs that were kept long enough, and rows of dead workers."""

    name: ClassVar = "janitor"

    def __init__(self, door: Door, jobs: Jobs, stats: Stats) -> None:
        super().__init__()
        self._door = door
        self._rules = RetentionRules.of(jobs)
        self._stats = stats
        self._place: Place | None = None

    def run_once(self) -> int:
        """Look at one batch of finished jobs; return how many were removed."""
        pruned = self._door.transaction(
            prune, self._rules, after=self._place, limit=PRUNE_BATCH
        )
        self._place = pruned.next
        self._stats.pruned += pruned.count
        if self._place is None:
            self._door.transaction(reap_workers, after=WORKERS_KEPT)
        return pruned.count

    def pause(self) -> float:
        """Wait for the interval; a moment only while there is more to look at."""
        return 0.2 if self._place is not None else jittered(PRUNE_INTERVAL)
