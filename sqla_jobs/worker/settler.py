"""The settler: writes how attempts ended, in batches.

It takes everything that has come whenever the last batch is written, so batches grow
with the load by themselves; a small one waits two milliseconds for company while
attempts are running. What a batch stepped over (a row that somebody holds, or a job that
is not ours any more) is tried alone, so that one open transaction or one lost job never
stands in the way of the others. A batch that the database refuses because of its values
is cut in half until the culprit stands alone.

Trying again is safe: an outcome that did arrive raised nothing, and the fence refuses
it the second time.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar, assert_never

from sqla_jobs.exc import JobsError
from sqla_jobs.queue.outcome import (
    Cancelled,
    Dead,
    Interrupted,
    Released,
    Retry,
    Snooze,
    Succeeded,
)
from sqla_jobs.queue.settle import Verdict, settle, settle_alone, was_settled
from sqla_jobs.worker.dead_letters import tell
from sqla_jobs.worker.ending import Ending, Mark
from sqla_jobs.worker.errors import error_text, error_type, is_of_the_values
from sqla_jobs.worker.room import BATCH
from sqla_jobs.worker.service import Service, jittered, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.orm import Session

    from sqla_jobs.declare.registry import Jobs
    from sqla_jobs.worker.door import Door
    from sqla_jobs.worker.stats import Stats

T = TypeVar("T")

BREATH: Final = 0.002
"""Seconds that a small batch waits for company while attempts are running."""
BUSY_PAUSE: Final = 0.25
"""Seconds until a row that somebody holds is tried again."""


class Settler(Service):
    """Writes endings; :meth:`put` may be called from any thread."""

    name: ClassVar = "settler"
    longest_pause = 5.0

    def __init__(
        self,
        door: Door,
        jobs: Jobs,
        stats: Stats,
        *,
        worker: str,
        busy: Callable[[], bool],
        settled: Callable[[float | None], None],
        freed: Callable[[set[str]], None],
    ) -> None:
        super().__init__()
        self._door = door
        self._jobs = jobs
        self._stats = stats
        self._worker = worker
        self._busy = busy
        self._settled = settled
        self._freed = freed
        self._endings: deque[Ending] = deque()
        self._alone: deque[tuple[float, Ending]] = deque()
        self._hand: list[Ending] = []

    def put(self, ending: Ending) -> None:
        """Take *ending*; it is written within milliseconds."""
        self._endings.append(ending)
        self.poke()

    @property
    def backlog(self) -> int:
        """Endings that are not written yet."""
        return len(self._endings) + len(self._alone) + len(self._hand)

    def pending(self) -> set[tuple[str, int]]:
        """Return job id and fence of what is not written yet."""
        endings = [*_copied(self._endings), *self._hand]
        endings += [ending for _, ending in _copied(self._alone)]
        return {(e.claim.id, e.claim.fence) for e in endings}

    def run_once(self) -> int:
        """Write at most one batch, and one of those that are tried alone."""
        endings = self._endings
        if 0 < len(endings) < BATCH and self._busy():
            self._stopping.wait(BREATH)
        batch = [endings.popleft() for _ in range(min(len(endings), BATCH))]
        if batch:
            self._hand = batch
            try:
                self._write(batch)
            except BaseException:
                # All of it is tried again, and some may have been written already.
                for ending in batch:
                    ending.doubtful = True
                endings.extendleft(reversed(batch))
                raise
            finally:
                self._hand = []
        self._try_one_alone()
        return len(batch)

    def pause(self) -> float:
        """Wait for the next ending, or for the time of one that was busy."""
        if self._endings:
            return 0.0
        if self._alone:
            return max(self._alone[0][0] - time.monotonic(), 0.0)
        return 60.0

    def close(self) -> None:
        """Give the connection back."""
        self._door.close()

    # --- batches ---------------------------------------------------------------------

    def _write(self, batch: list[Ending]) -> None:
        started = time.perf_counter()
        done: list[tuple[Ending, Verdict]] = []
        missed: list[tuple[float, Ending]] = []
        groups: dict[str, list[Ending]] = {}
        for ending in batch:
            if ending.outcome is Mark.COMMITTED:
                done.append((ending, Verdict.ACCEPTED))
            elif ending.outcome is Mark.STALE or ending.lease.lost:
                # Past its lease a worker settles nothing, whatever the database says.
                done.append((ending, Verdict.STALE))
            else:
                groups.setdefault(ending.lease.id, []).append(ending)
        for worker_id, endings in groups.items():
            plain = [e for e in endings if not e.on_dead]
            accepted = self._settle(worker_id, plain)
            accepted |= self._settle_dead(worker_id, endings)
            for ending in endings:
                if ending.claim.id in accepted:
                    done.append((ending, Verdict.ACCEPTED))
                else:
                    missed.append((0.0, ending))
        # Only now, when nothing can fail any more: a batch that fails is tried again.
        self._alone.extend(missed)
        self._stats.batches += 1
        self._stats.settle_seconds += time.perf_counter() - started
        self._count(done)

    def _settle(self, worker_id: str, endings: Sequence[Ending]) -> set[str]:
        settlements = [s for e in endings if (s := e.settlement) is not None]
        if not settlements:
            return set()
        try:
            return self._door.run(settle, worker_id, settlements, worker=self._worker)
        except Exception as error:
            if not is_of_the_values(error):
                raise
            if len(endings) > 1:
                half = len(endings) // 2
                first = self._settle(worker_id, endings[:half])
                return first | self._settle(worker_id, endings[half:])
            return self._refused(worker_id, endings[0], error)

    def _refused(self, worker_id: str, ending: Ending, error: Exception) -> set[str]:
        """Settle the one *ending* whose values the database does not take."""
        logger.error("%s could not be stored: %r", ending.claim.name, error)
        claim = ending.claim
        spec = self._jobs.get(claim.name)
        again = spec and spec.retry.decide(error, claim.attempt, claim.max_attempts)
        type_, text = error_type(error), error_text(error)
        ending.outcome = Retry(again, type_, text) if again else Dead(type_, text)
        settlement = ending.settlement
        assert settlement is not None  # noqa: S101 - it was just made
        return self._door.run(settle, worker_id, [settlement], worker=self._worker)

    def _settle_dead(self, worker_id: str, endings: Sequence[Ending]) -> set[str]:
        """Settle deaths that are told to a job, each in one transaction with it."""
        accepted: set[str] = set()
        for ending in endings:
            if not ending.on_dead:
                continue
            self._door.close()
            try:
                accepted |= self._door.transaction(
                    self._settle_and_tell, worker_id, ending
                )
            except Exception as error:
                if not isinstance(error, JobsError) and not is_of_the_values(error):
                    raise
                logger.exception("the death of %r cannot be told", ending.claim.name)
                accepted |= self._settle(worker_id, [ending])
        return accepted

    def _settle_and_tell(
        self, session: Session, worker_id: str, ending: Ending
    ) -> set[str]:
        settlement = ending.settlement
        assert settlement is not None  # noqa: S101 - a death is an outcome
        accepted = settle(session, worker_id, [settlement], worker=self._worker)
        if accepted:
            self._tell(session, ending)
        return accepted

    def _tell(self, session: Session, ending: Ending) -> None:
        spec = self._jobs.get(ending.claim.name)
        if spec is not None and isinstance(ending.outcome, Dead):
            tell(session, spec, ending.claim.id, ending.outcome.error)

    # --- what a batch stepped over ---------------------------------------------------

    def _try_one_alone(self) -> None:
        if not self._alone or self._alone[0][0] > time.monotonic():
            return
        # Out of the way of the others, whatever comes of it.
        _, ending = self._alone.popleft()
        later = time.monotonic() + jittered(BUSY_PAUSE)
        try:
            verdict = self._alone_verdict(ending)
        except BaseException:
            ending.doubtful = True
            self._alone.append((later, ending))
            raise
        if verdict is Verdict.BUSY:
            self._alone.append((later, ending))
            return
        self._count([(ending, verdict)])

    def _alone_verdict(self, ending: Ending) -> Verdict:
        settlement = ending.settlement
        if settlement is None or ending.lease.lost:
            return Verdict.STALE
        worker_id = ending.lease.id

        def alone(session: Session) -> Verdict:
            verdict = settle_alone(session, worker_id, settlement, worker=self._worker)
            if verdict is Verdict.BUSY:
                session.rollback()
            elif verdict is Verdict.ACCEPTED and ending.on_dead:
                self._tell(session, ending)
            return verdict

        self._door.close()
        verdict = self._door.transaction(alone)
        if verdict is Verdict.STALE and ending.doubtful:
            claim = ending.claim
            verdict = self._door.run(was_settled, claim.id, claim.fence, worker_id)
        return verdict

    # --- the books -------------------------------------------------------------------

    def _count(self, done: Sequence[tuple[Ending, Verdict]]) -> None:
        """Note what became of endings, free their room, and tell when they are due."""
        again: float | None = None
        freed: set[str] = set()
        for ending, verdict in done:
            ending.room.settled += 1
            if verdict is not Verdict.ACCEPTED:
                self._note_stale(ending)
                continue
            self._add(ending)
            if ending.is_for_others:
                freed.add(ending.claim.queue)
            due = ending.again_in
            if due is not None and (again is None or due < again):
                again = due
        if done:
            self._settled(again)
        if freed:
            self._freed(freed)

    def _add(self, ending: Ending) -> None:
        stats, outcome = self._stats, ending.outcome
        match outcome:
            case Succeeded() | Mark.COMMITTED:
                stats.succeeded += 1
            case Retry():
                stats.retried += 1
            case Dead():
                stats.dead += 1
            case Snooze():
                stats.snoozed += 1
            case Cancelled():
                stats.cancelled += 1
            case Interrupted():
                stats.interrupted += 1
            case Released():
                stats.released += 1
            case Mark.STALE:
                stats.stale += 1
            case _:
                assert_never(outcome)

    def _note_stale(self, ending: Ending) -> None:
        self._stats.stale += 1
        claim = ending.claim
        if ending.lease.lost:
            return  # Told once, for all attempts of the lease.
        logger.warning(
            "an outcome of %s %s (attempt %d, fence %d) was refused: the attempt had "
            "lost its job",
            claim.name,
            claim.id,
            claim.attempt,
            claim.fence,
        )


def _copied(shared: deque[T]) -> list[T]:
    """Return what is in *shared*, to which other threads append meanwhile."""
    while True:
        try:
            return list(shared)
        except RuntimeError:  # It changed during the iteration.
            continue
