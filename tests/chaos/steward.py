"""The process of the people who steer: cancels, operator's retries, paused queues."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import JobSession, cancel_job, pause_queue, resume_queue, retry_job
from sqla_jobs.exc import JobNotCancellableError, JobNotRetryableError
from sqla_jobs.models import Job
from tests.chaos.kinds import DEADLY, QUEUES
from tests.chaos.outage import surviving
from tests.chaos.plan import Plan
from tests.chaos.tables import STEWARD, application

BETWEEN = 0.25


def steer(packed: dict[str, Any], number: int, generation: int) -> None:
    """Interfere until it is calm."""
    plan = Plan.unpacked(packed)
    chance = plan.chance("steward", number, generation)
    engine, sessions = application(STEWARD)
    verbs = [_cancel, _cancel, _retry, _retry, _pause]
    while not plan.is_calm:
        with surviving(plan):
            chance.choice(verbs)(sessions, chance)
        time.sleep(chance.uniform(0.0, 2 * BETWEEN))
    engine.dispose()


def resume_all(sessions: sessionmaker[JobSession]) -> None:
    """Let every queue go on: a steward that was killed has left one paused."""
    with sessions.begin() as session:
        for queue in QUEUES:
            resume_queue(session, queue)


def _cancel(sessions: sessionmaker[JobSession], chance: random.Random) -> None:
    state = chance.choice(("ready", "running"))
    # A worker may be quicker: that is known by the commit at the latest.
    with suppress(JobNotCancellableError), sessions.begin() as session:
        chosen = _one(session, state)
        if chosen is not None:
            cancel_job(session, chosen, reason="chaos")


def _retry(sessions: sessionmaker[JobSession], chance: random.Random) -> None:
    state = chance.choice(("dead", "cancelled", "cancelled", "succeeded"))
    with suppress(JobNotRetryableError), sessions.begin() as session:
        chosen = _one(session, state)
        if chosen is not None:
            retry_job(session, chosen)


def _pause(sessions: sessionmaker[JobSession], chance: random.Random) -> None:
    queue = chance.choice([*QUEUES])
    with sessions.begin() as session:
        pause_queue(session, queue)
    time.sleep(chance.uniform(0.1, 1.0))
    with sessions.begin() as session:
        resume_queue(session, queue)


def _one(session: Session, state: str) -> Any:
    return session.scalar(
        select(Job.id)
        .where(Job.state == state, Job.name.not_in(DEADLY))
        .order_by(func.random())
        .limit(1)
    )
