"""The claimer: keeps every queue's room filled.

It claims for all queues in one statement, while the settler is still writing what was
claimed before (without that overlap 40 % of the throughput are gone). A queue gave less
than asked for is *dry*: it is asked again when somebody says that there is something
(:meth:`Claimer.look`), when its next job is due, or after the backstop. While nobody
can say so, because LISTEN is not proven healthy, the backstop is the poll interval.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Final

from sqla_jobs.queue.claim import claim, inputs_of, next_due, owned
from sqla_jobs.queue.outcome import Released
from sqla_jobs.worker.attempts import Attempt
from sqla_jobs.worker.ending import Ending
from sqla_jobs.worker.room import BATCH, HOLD
from sqla_jobs.worker.service import Service, jittered, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqla_jobs.declare.registry import Jobs
    from sqla_jobs.queue.claim import Claim
    from sqla_jobs.worker.attempts import Attempts
    from sqla_jobs.worker.door import Door
    from sqla_jobs.worker.executor import Executor
    from sqla_jobs.worker.lease import Lease
    from sqla_jobs.worker.room import Room
    from sqla_jobs.worker.settler import Settler
    from sqla_jobs.worker.stats import Stats

BACKSTOP: Final = 10.0
"""Seconds between two looks while notifications are known to arrive."""
GATHER: Final = 0.005
"""Seconds that a small room waits to grow, so that claims stay few under load."""
UNKNOWN_DELAY: Final = timedelta(seconds=30)
"""How long a job whose name nobody here knows is left to other workers."""
SOON: Final = 0.005
"""The first pause after a job that is due could not be claimed; doubles each time."""


class Claimer(Service):
    """Claims, and hands what it got to the executor."""

    name: ClassVar = "claimer"
    longest_pause = 5.0

    def __init__(
        self,
        door: Door,
        jobs: Jobs,
        stats: Stats,
        *,
        rooms: Mapping[str, Room],
        attempts: Attempts,
        executor: Executor,
        settler: Settler,
        lease: Callable[[], Lease | None],
        healthy: Callable[[], bool],
        poll_interval: float,
    ) -> None:
        super().__init__()
        self._door = door
        self._jobs = jobs
        self._stats = stats
        self._rooms = rooms
        self._attempts = attempts
        self._executor = executor
        self._settler = settler
        self._lease = lease
        self._healthy = healthy
        self._poll_interval = poll_interval
        self._limits = {
            name: (spec.timeout + timedelta(seconds=HOLD)).total_seconds()
            for name, spec in jobs.specs.items()
            if spec.timeout is not None
        }
        self._unknown: set[str] = set()
        self._dry: set[str] = set()
        self._lock = threading.Lock()
        self._look_at = 0.0
        self._blind = False
        self._last = 0.0
        self._in_vain = 0
        self._in_doubt = False
        self.paused: frozenset[str] = frozenset()
        """Queues that are not claimed from; replaced by the heartbeat."""

    def look(self, within: float = 0.0) -> None:
        """Ask every queue again, at the latest *within* seconds from now."""
        if self._schedule(within, blind=False):
            self.poke()

    def run_once(self) -> int:
        """Claim once for all queues that want jobs; return how many came."""
        lease = self._lease()
        if lease is None or not lease.valid:
            return 0
        self._look_now()
        rooms = self._wanted()
        if not rooms:
            return 0
        started = time.monotonic()
        if self._in_doubt:
            self._give_back_orphans(lease)
        # Until its jobs are in our hands: an answer that is lost leaves them running
        # under our lease, and nobody else may touch them.
        self._in_doubt = True
        claims = self._door.run(
            claim, lease.id, rooms, limits=self._limits, unknown=self._unknown
        )
        self._stats.claims += 1
        self._take(self._with_inputs(claims), lease)
        self._in_doubt = False
        got = dict.fromkeys(rooms, 0)
        for each in claims:
            got[each.queue] += 1
        self._dry.update(queue for queue, room in rooms.items() if got[queue] < room)
        self._in_vain = 0 if claims else self._in_vain + 1
        self._last = time.monotonic()
        self._stats.claim_seconds += self._last - started
        self._find_next_look()
        return len(claims)

    def pause(self) -> float:
        """Wait for room, for the next look, or not at all."""
        lease = self._lease()
        if lease is None or not lease.valid:
            return 1.0  # The heartbeat pokes when there is one again.
        if self._wanted():
            return 0.0
        with self._lock:
            left = self._look_at - time.monotonic()
        if self._gathering():
            left = min(left, GATHER)
        return max(min(left, BACKSTOP), 0.0)

    def close(self) -> None:
        """Give the connection back."""
        self._door.close()

    # --- whom to ask, and when -------------------------------------------------------

    def _wanted(self) -> dict[str, int]:
        """Return how many jobs to claim for each queue now."""
        rooms = {}
        rested = time.monotonic() - self._last >= GATHER
        for queue, room in self._rooms.items():
            if queue in self._dry or queue in self.paused:
                continue
            vacancy = room.vacancy()
            if vacancy <= 0:
                continue
            full = min(room.limit + room.ahead, BATCH)
            if vacancy >= full / 2 or (rested and room.idle):
                rooms[queue] = min(vacancy, BATCH)
        return rooms

    def _gathering(self) -> bool:
        return any(
            room.idle and room.vacancy() > 0
            for queue, room in self._rooms.items()
            if queue not in self._dry and queue not in self.paused
        )

    def _schedule(self, within: float, *, blind: bool) -> bool:
        """Plan a look, unless a sooner one is planned; return whether it was."""
        at = time.monotonic() + within
        with self._lock:
            if at >= self._look_at:
                return False
            self._look_at, self._blind = at, blind
            return True

    def _look_now(self) -> None:
        """If it is time: ask every queue again."""
        with self._lock:
            if time.monotonic() < self._look_at:
                return
            self._look_at, blind = float("inf"), self._blind
        # A backstop most often finds nothing: a probe of the index costs less.
        if blind and not self._is_due():
            return
        self._dry.clear()

    def _is_due(self) -> bool:
        return self._find_next_look() <= 0

    def _find_next_look(self) -> float:
        """Find out when to ask again, once every queue is dry."""
        queues = [q for q in self._rooms if q not in self.paused]
        if any(queue not in self._dry for queue in queues):
            return 0.0
        try:
            due = self._door.run(next_due, queues, self._unknown) if queues else None
        except BaseException:
            # Nothing is planned: without this only a hint would make it look again.
            self._schedule(0.0, blind=False)
            raise
        backstop = jittered(BACKSTOP if self._healthy() else self._poll_interval)
        if due is None or due > backstop:
            self._schedule(backstop, blind=True)
        elif due > 0:
            # A moment later, not earlier: an early claim is one in vain.
            self._schedule(due + 0.001, blind=False)
        else:
            # Due, yet not to be had: somebody holds the row, or it came just now.
            soon = min(SOON * 2.0 ** min(self._in_vain, 16), self._poll_interval)
            self._schedule(soon, blind=False)
        return float("inf") if due is None else due

    # --- what came -------------------------------------------------------------------

    def _with_inputs(self, claims: list[Claim]) -> list[Claim]:
        """Fetch the inputs that were too large to come along."""
        missing = [each.id for each in claims if each.input is None]
        if not missing:
            return claims
        inputs = self._door.run(inputs_of, missing)
        return [
            each._replace(input=inputs.get(each.id)) if each.input is None else each
            for each in claims
        ]

    def _take(self, claims: list[Claim], lease: Lease) -> None:
        now = time.monotonic()
        batches: dict[str, list[Attempt]] = {}
        for each in claims:
            room = self._rooms[each.queue]
            room.claimed += 1
            spec = self._jobs.get(each.name)
            if spec is None or spec.function is None:
                self._give_back_unknown(each, room, lease)
                continue
            attempt = Attempt(each, spec, room, lease, now)
            batches.setdefault(each.queue, []).append(attempt)
        self._stats.claimed += len(claims)
        for queue, batch in batches.items():
            self._attempts.add(batch)
            self._executor.dispatch(self._rooms[queue].admit(batch))

    def _give_back_orphans(self, lease: Lease) -> None:
        """Give back what a claim took whose answer did not arrive."""
        held = self._door.run(owned, lease.id)
        known = {(a.claim.id, a.claim.fence) for a in self._attempts.live()}
        known |= self._settler.pending()
        orphans = [each for each in held if (each.id, each.fence) not in known]
        for each in orphans:
            room = self._rooms[each.queue]
            room.claimed += 1
            ending = Ending(each, room, lease, Released(), doubtful=True)
            self._settler.put(ending)
        if orphans:
            logger.warning(
                "gave back %d jobs of a claim whose answer was lost", len(orphans)
            )

    def _give_back_unknown(self, each: Claim, room: Room, lease: Lease) -> None:
        if each.name not in self._unknown:
            # Left in place they would starve the queue: they are always first.
            self._unknown = self._unknown | {each.name}
            logger.warning(
                "jobs %r in queue %r are left to other workers: this one has no handler "
                "of that name",
                each.name,
                each.queue,
            )
        self._settler.put(Ending(each, room, lease, Released(UNKNOWN_DELAY)))
