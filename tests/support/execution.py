"""An executor without a database: claims go in, how their attempts ended comes out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from sqla_jobs import Jobs, JobSpec
from sqla_jobs.declare.context import JobFacts
from sqla_jobs.queue.claim import Claim
from sqla_jobs.queue.outcome import Outcome
from sqla_jobs.worker.attempts import Attempt, Attempts
from sqla_jobs.worker.borrowed import Backends
from sqla_jobs.worker.ending import Ending, Mark
from sqla_jobs.worker.executor import Executor
from sqla_jobs.worker.lease import Lease, lease_clock
from sqla_jobs.worker.room import Room
from sqla_jobs.worker.sessions import Sessions
from tests.support.waiting import wait_until

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Execution:
    """Runs attempts as a worker does, up to the hand-over to the settler."""

    def __init__(
        self,
        jobs: Jobs,
        *,
        limit: int = 2,
        around: Callable[[JobFacts], AbstractContextManager[object]] | None = None,
    ) -> None:
        self.jobs = jobs
        self.endings: list[Ending] = []
        self.attempts = Attempts()
        self.room = Room("default", limit)
        self.lease = Lease(30.0)
        self.lease.registered(lease_clock(), time.monotonic(), EPOCH)
        backends = Backends(lambda: None)
        sessions = Sessions(worker="test:1", backends=backends, sync=None, async_=None)
        self.executor = Executor(
            self.attempts,
            sessions,
            self.endings.append,
            around=around or jobs.around,
            size=limit,
        )
        self.executor.use_async()
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.executor.close(5.0), "the loop did not end"

    def attempt(
        self,
        spec: JobSpec[Any, Any],
        input: str = "null",
        *,
        attempt: int = 1,
        max_attempts: int | None = None,
        priority: int = 5,
        run_at: datetime = EPOCH,
    ) -> Attempt:
        """Make the attempt of a fresh claim."""
        claim = Claim(
            id=str(UUID(int=next(self._numbers))),
            fence=1,
            name=spec.name,
            tenant="",
            queue="default",
            key="k",
            priority=priority,
            attempt=attempt,
            max_attempts=max_attempts or spec.retry.attempts,
            interruptions=0,
            run_at=run_at,
            traceparent=None,
            enqueued_by=None,
            input=input,
        )
        return Attempt(claim, spec, self.room, self.lease, time.monotonic())

    def start(self, *attempts: Attempt) -> None:
        """Hand *attempts* to the room, as a claim does; what may start starts."""
        self.attempts.add(attempts)
        self.executor.dispatch(self.room.admit(attempts))

    def run(self, *attempts: Attempt, timeout: float = 10.0) -> list[Outcome | Mark]:
        """Start *attempts* and wait until all have ended; return how, in their order."""
        self.start(*attempts)
        return self.ended(*attempts, timeout=timeout)

    def ended(self, *attempts: Attempt, timeout: float = 10.0) -> list[Outcome | Mark]:
        """Wait until *attempts* have ended; return how."""
        wanted = [a.claim.id for a in attempts]

        def found() -> dict[str, Outcome | Mark]:
            by_id = {e.claim.id: e.outcome for e in list(self.endings)}
            return by_id if set(wanted) <= by_id.keys() else {}

        outcomes = wait_until(found, timeout, what=f"{len(wanted)} endings")
        return [outcomes[id_] for id_ in wanted]


def delay_of(outcome: Outcome | Mark) -> timedelta | None:
    """Return how long an outcome makes the job wait."""
    return getattr(outcome, "delay", None)
