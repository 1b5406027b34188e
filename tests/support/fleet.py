"""Workers without processes: each call is one transaction, as a real worker makes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID, uuid4

from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from sqla_jobs import clock
from sqla_jobs.dialects import dialect_named
from sqla_jobs.models import Attempt, Job, WorkerRow
from sqla_jobs.queue.claim import Claim, claim, next_due
from sqla_jobs.queue.fence import AttemptGuard
from sqla_jobs.queue.outcome import Outcome, Settlement
from sqla_jobs.queue.renew import (
    Condition,
    Renewal,
    expire_lease,
    register_worker,
    renew,
)
from sqla_jobs.queue.rescue import Rescued, rescue
from sqla_jobs.queue.settle import Verdict, settle, settle_alone, was_settled

TTL = timedelta(seconds=30)
GRACE = timedelta(seconds=10)
DELAY = timedelta(seconds=5)
LABEL = "host-1:42"
"""What the attempts' history calls every worker of the fleet."""

Ended: TypeAlias = tuple[Claim, Outcome]


class Fleet:
    """Makes what workers make, on one engine: a claim, a settle, a beat, a rescue."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    def start(self, ttl: timedelta = TTL) -> str:
        """Register a worker whose lease lasts *ttl*; return its id."""
        worker_id = str(uuid4())
        with Session(self.autocommit) as session:
            register_worker(
                session,
                worker_id=worker_id,
                host="host-1",
                pid=42,
                version="0.1.0",
                queues={"default": 10},
                ttl=ttl,
            )
        return worker_id

    def claim(
        self,
        worker_id: str,
        room: int | Mapping[str, int] = 100,
        *,
        limits: Mapping[str, float] | None = None,
        unknown: Collection[str] = (),
    ) -> list[Claim]:
        """Claim; a bare number is the room of the queue ``default``."""
        rooms = {"default": room} if isinstance(room, int) else room
        with Session(self.autocommit) as session:
            return claim(session, worker_id, rooms, limits=limits, unknown=unknown)

    def claim_one(self, worker_id: str, **options: Mapping[str, float]) -> Claim:
        """Claim exactly one job of the queue ``default``."""
        (only,) = self.claim(worker_id, 1, **options)
        return only

    def next_due(
        self, queues: Sequence[str] = ("default",), unknown: Collection[str] = ()
    ) -> float | None:
        """Seconds until the next job of *queues*."""
        with Session(self.autocommit) as session:
            return next_due(session, queues, unknown)

    def settle(self, worker_id: str, *ended: Ended) -> set[str]:
        """Settle a batch, stepping over rows that others hold."""
        with Session(self.autocommit) as session:
            return settle(session, worker_id, settlements(ended), worker=LABEL)

    def settle_alone(
        self, worker_id: str, claimed: Claim, outcome: Outcome, patience: str = "250ms"
    ) -> Verdict:
        """Settle one job, waiting for its row."""
        (one,) = settlements([(claimed, outcome)])
        with Session(self.engine) as session:
            verdict = settle_alone(
                session, worker_id, one, worker=LABEL, patience=patience
            )
            if verdict is Verdict.BUSY:
                session.rollback()
            else:
                session.commit()
        return verdict

    def was_settled(self, worker_id: str, claimed: Claim) -> Verdict:
        """Ask whose *claimed* is by now."""
        with Session(self.autocommit) as session:
            return was_settled(session, claimed.id, claimed.fence, worker_id)

    def renew(
        self,
        worker_id: str,
        running: Iterable[Claim] = (),
        *,
        ttl: timedelta = TTL,
        backends: Sequence[int] = (),
    ) -> Renewal:
        """Beat once."""
        pairs = [(c.id, c.fence) for c in running]
        with Session(self.autocommit) as session:
            condition = Condition(backends=backends)
            return renew(
                session, worker_id, ttl=ttl, running=pairs, condition=condition
            )

    def expire(self, worker_id: str) -> None:
        """End the lease on purpose, as a worker does that shuts down."""
        with Session(self.autocommit) as session:
            expire_lease(session, worker_id)

    def rescue(
        self,
        *,
        grace: timedelta = GRACE,
        delay: timedelta = DELAY,
        limit: int = 500,
    ) -> list[Rescued]:
        """Sweep once; twice, and some time apart, where a rescue takes two looks."""
        with Session(self.autocommit) as session:
            if not dialect_named(self.engine.dialect).skip_locked:
                found = rescue(session, grace=grace, delay=delay, limit=limit)
                if len(found) >= limit:
                    return found
                self.let_suspicion_age()
                return found + rescue(session, grace=grace, delay=delay, limit=limit)
            return rescue(session, grace=grace, delay=delay, limit=limit)

    def look(self, *, grace: timedelta = GRACE) -> list[Rescued]:
        """Take one look, as a rescuer does that has just woken up."""
        with Session(self.autocommit) as session:
            return rescue(session, grace=grace, delay=DELAY)

    def let_suspicion_age(self) -> None:
        """Make every suspicion as old as if its first look were a minute ago."""
        with Session(self.autocommit) as session:
            session.execute(
                update(WorkerRow)
                .where(WorkerRow.suspect_at.is_not(None))
                .values(suspect_at=clock.shifted(-timedelta(minutes=1)))
            )

    def guard(self, worker_id: str, claimed: Claim) -> AttemptGuard:
        """Make the guard of the session of attempt *claimed*."""
        return AttemptGuard(
            claimed.id,
            claimed.fence,
            claimed.attempt,
            worker_id=worker_id,
            worker=LABEL,
        )

    def job(self, job_id: UUID | str) -> Job:
        """Read a job as it is committed now."""
        with Session(self.autocommit) as session:
            return session.get_one(Job, UUID(str(job_id)))

    def states(self) -> dict[UUID, str]:
        """Read the state of every job."""
        with Session(self.autocommit) as session:
            rows = session.execute(select(Job.id, Job.state))
            return {row.id: row.state for row in rows}

    def attempts(self, job_id: UUID | str) -> list[Attempt]:
        """Read the history of a job, oldest first."""
        query = select(Attempt).where(Attempt.job_id == UUID(str(job_id)))
        with Session(self.autocommit) as session:
            return list(session.scalars(query.order_by(Attempt.fence)))

    def history(self, job_id: UUID | str) -> list[tuple[int, str]]:
        """Read number and outcome of each ended attempt of a job, oldest first."""
        return [(a.number, a.outcome) for a in self.attempts(job_id)]


def settlements(ended: Iterable[Ended]) -> list[Settlement]:
    """Address outcomes by what was claimed."""
    return [Settlement(c.id, c.fence, c.attempt, outcome) for c, outcome in ended]
