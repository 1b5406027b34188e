"""What the queue shall do, as plain Python: the reference of the state machine.

No SQL, no sharing with the library but its outcome values. Time is handed in.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from sqla_jobs.queue.outcome import (
    Cancelled,
    Dead,
    Interrupted,
    Outcome,
    Released,
    Retry,
    Snooze,
    Succeeded,
)

READY, RUNNING = "ready", "running"
FINISHED = frozenset({"succeeded", "dead", "cancelled"})
UNCOUNTED_INTERRUPTIONS = 3


@attrs.define
class Past:
    """One ended attempt."""

    fence: int
    number: int
    worker: str | None
    started_at: datetime | None
    ended_at: datetime
    outcome: str


@attrs.define
class Rerun:
    """One more run that was asked for while the job ran."""

    input: dict[str, Any]
    run_at: datetime


@attrs.define(kw_only=True)
class Job:
    """One job."""

    id: UUID
    name: str
    key: str
    queue: str
    priority: int
    run_at: datetime
    input: dict[str, Any]
    max_attempts: int
    created_at: datetime
    state: str = READY
    attempt: int = 0
    interruptions: int = 0
    fence: int = 0
    worker: str | None = None
    attempted_at: datetime | None = None
    deadline_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    cancel_reason: str | None = None
    finished_at: datetime | None = None
    rerun: Rerun | None = None
    output: Any = None
    past: list[Past] = attrs.field(factory=list)

    def new_life(self, run_at: datetime, input: dict[str, Any]) -> None:
        """Start over under a new fence, with the history kept."""
        self.state, self.fence, self.attempt, self.interruptions = (
            READY,
            self.fence + 1,
            0,
            0,
        )
        self.run_at, self.input, self.rerun = run_at, input, None
        self.attempted_at = self.deadline_at = self.finished_at = None
        self.cancel_requested_at = self.cancel_reason = self.output = None
        self.worker = None

    def owned_by(self, worker: str, fence: int) -> bool:
        """Whether an attempt still owns the job."""
        return self.state == RUNNING and (self.worker, self.fence) == (worker, fence)


@attrs.frozen
class Taken:
    """What a claim gives."""

    id: UUID
    fence: int
    attempt: int
    input: dict[str, Any]


@attrs.define
class Model:
    """All jobs and workers."""

    now: datetime
    jobs: dict[tuple[str, str], Job] = attrs.field(factory=dict)
    leases: dict[str, datetime] = attrs.field(factory=dict)
    paused: set[str] = attrs.field(factory=set)

    def find(self, job_id: UUID) -> Job | None:
        """Return a job by its id."""
        return next((j for j in self.jobs.values() if j.id == job_id), None)

    # --- enqueue ---------------------------------------------------------------------

    def enqueue(self, new: Job, mode: str) -> str:
        """Return what becomes of *new*: an outcome, or ``error``."""
        job = self.jobs.get((new.name, new.key))
        if job is None:
            self.jobs[new.name, new.key] = new
            return "created"
        if mode == "error":
            return "error"
        if mode == "replace" and job.state == READY and job.attempted_at is None:
            job.input, job.priority, job.run_at = new.input, new.priority, new.run_at
            job.max_attempts = new.max_attempts
            return "replaced"
        if mode != "rerun":
            return "kept"
        if job.state == RUNNING:
            job.rerun = Rerun(new.input, new.run_at)
            return "rerun"
        if job.state == READY:
            job.input, job.rerun = new.input, None
            job.run_at = min(job.run_at, new.run_at)
        else:
            self._remember_success(job)
            job.new_life(new.run_at, new.input)
        job.priority, job.max_attempts = new.priority, new.max_attempts
        return "rerun"

    # --- claim -----------------------------------------------------------------------

    def alive(self, worker: str) -> bool:
        """Whether a worker's lease is valid."""
        return self.leases[worker] > self.now

    def claim(
        self, worker: str, rooms: dict[str, int], limits: dict[str, float]
    ) -> list[Taken]:
        """Take the best due jobs of each queue."""
        if not self.alive(worker):
            return []
        taken = []
        for queue, room in rooms.items():
            due = [
                j
                for j in self.jobs.values()
                if j.queue == queue and j.state == READY and j.run_at <= self.now
            ]
            due.sort(key=lambda j: (j.priority, j.run_at, j.id.int))
            taken += due[:room]
        taken.sort(key=lambda j: (j.priority, j.run_at, j.id.int))
        for job in taken:
            job.state, job.worker = RUNNING, worker
            job.fence, job.attempt = job.fence + 1, job.attempt + 1
            job.attempted_at = self.now
            limit = limits.get(job.name)
            job.deadline_at = (
                None if limit is None else self.now + timedelta(seconds=limit)
            )
        return [Taken(j.id, j.fence, j.attempt, j.input) for j in taken]

    def next_due(self, queues: set[str]) -> float | None:
        """Seconds until the next job is due."""
        times = [
            j.run_at
            for j in self.jobs.values()
            if j.queue in queues and j.state == READY
        ]
        return (min(times) - self.now).total_seconds() if times else None

    # --- the end of an attempt -------------------------------------------------------

    def settle(self, worker: str, job_id: UUID, fence: int, outcome: Outcome) -> bool:
        """End an attempt, if it owns the job still."""
        job = self.find(job_id)
        if job is None or not job.owned_by(worker, fence):
            return False
        uncounted = isinstance(outcome, Snooze | Released) or (
            isinstance(outcome, Interrupted)
            and job.interruptions < UNCOUNTED_INTERRUPTIONS
        )
        number = job.attempt
        match outcome:
            case Succeeded():
                state, recorded = "succeeded", "succeeded"
            case Dead(timed_out=late):
                state, recorded = "dead", "timed_out" if late else "dead"
            case Cancelled():
                state, recorded = "cancelled", "cancelled"
            case Retry(timed_out=late):
                state, recorded = READY, "timed_out" if late else "failed"
            case Snooze():
                state, recorded = READY, "snoozed"
            case Interrupted():
                state, recorded = READY, "interrupted"
            case Released():
                state, recorded = READY, ""
        if state == READY and job.cancel_requested_at is not None:
            state = "cancelled"
        elif state == READY and job.attempt >= job.max_attempts and not uncounted:
            state = "dead"
        again = job.rerun is not None and state != READY
        if recorded and (recorded != "succeeded" or again):
            self._record(job, number, recorded)
        if uncounted:
            job.attempt -= 1
            job.interruptions += isinstance(outcome, Interrupted)
        delay = getattr(outcome, "delay", timedelta(0))
        stays = isinstance(outcome, Released) and not delay
        self._end(job, state, job.run_at if stays else self.now + delay)
        if isinstance(outcome, Succeeded) and not again:
            job.output = outcome.output
        return True

    def rescue(
        self, grace: timedelta, delay: timedelta
    ) -> dict[UUID, tuple[str, int, str, bool]]:
        """Free what dead workers held, and what ran or stopped too long."""
        before = self.now - grace
        freed = {}
        for job in self.jobs.values():
            if job.state != RUNNING:
                continue
            assert job.worker is not None
            asked = job.cancel_requested_at
            if not self.leases.get(job.worker, before) > before:
                why = "lost"
            elif job.deadline_at is not None and job.deadline_at < before:
                why = "timed_out"
            elif asked is not None and asked < before:
                why = "cancelled"
            else:
                continue
            number, owner, fence = job.attempt, job.worker, job.fence
            state = READY
            if asked is not None:
                state = "cancelled"
            elif job.attempt >= job.max_attempts:
                state = "dead"
            self._record(job, number, why)
            self._end(job, state, self.now + delay)
            job.fence = fence + 1
            freed[job.id] = (job.state, number, owner, why == "timed_out")
        return freed

    def _record(self, job: Job, number: int, outcome: str) -> None:
        assert job.worker is not None
        started, ended = job.attempted_at, self.now
        past = Past(job.fence, number, job.worker, started, ended, outcome)
        job.past.append(past)

    def _remember_success(self, job: Job) -> None:
        """The row alone told of it, and forgets it now; nobody knows the worker."""
        if job.state == "succeeded":
            assert job.finished_at is not None
            fence, number = job.fence, job.attempt
            started, ended = job.attempted_at, job.finished_at
            past = Past(fence, number, None, started, ended, "succeeded")
            job.past.append(past)

    def _end(self, job: Job, state: str, later: datetime) -> None:
        if state != READY and job.rerun is not None:
            job.new_life(job.rerun.run_at, job.rerun.input)
            return
        job.state, job.worker, job.deadline_at = state, None, None
        if state == READY:
            job.run_at = later
        else:
            job.finished_at = self.now

    def whose(self, job_id: UUID, fence: int) -> str:
        """Tell what a worker would learn that lost the answer to its settle."""
        job = self.find(job_id)
        if job is None:
            return "stale"
        if job.fence == fence:
            return "busy" if job.state == RUNNING else "accepted"
        known = {p.fence: p.outcome for p in job.past}.get(fence, "lost")
        return "stale" if known == "lost" else "accepted"

    # --- people ----------------------------------------------------------------------

    def cancel(self, job: Job, reason: str | None = None) -> bool:
        """Cancel, or ask for it; False when it is too late."""
        if job.state in FINISHED:
            return False
        if job.state == READY:
            job.state, job.finished_at = "cancelled", self.now
        job.cancel_requested_at = job.cancel_requested_at or self.now
        job.cancel_reason = job.cancel_reason if reason is None else reason
        job.rerun = None
        return True

    def retry(self, job: Job) -> bool:
        """Make a finished job ready; False when it has not finished."""
        if job.state not in FINISHED:
            return False
        self._remember_success(job)
        job.state, job.fence, job.run_at = READY, job.fence + 1, self.now
        job.max_attempts = max(job.max_attempts, job.attempt + 1)
        job.interruptions = 0
        job.finished_at = job.cancel_requested_at = job.cancel_reason = None
        job.output = None
        return True

    def discard(self, job: Job) -> bool:
        """Delete a finished job; False when it has not finished."""
        if job.state not in FINISHED:
            return False
        del self.jobs[job.name, job.key]
        return True

    def prune(self, finished: timedelta, dead: timedelta) -> int:
        """Delete what finished long ago."""
        old = []
        for place, job in self.jobs.items():
            kept = dead if job.state == "dead" else finished
            if job.finished_at is not None and self.now - job.finished_at > kept:
                old.append(place)
        for place in old:
            del self.jobs[place]
        return len(old)
