"""C44, C46: everybody works on the same jobs at once, and every job ends in one piece."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import NO_TENANT, Jobs, JobSession
from sqla_jobs.exc import (
    JobNotCancellableError,
    JobNotRetryableError,
    LeaseLostError,
)
from sqla_jobs.models import Attempt, Job
from sqla_jobs.queue.claim import Claim
from sqla_jobs.queue.control import cancel_job, retry_job
from sqla_jobs.queue.fence import guard
from sqla_jobs.queue.outcome import (
    Cancelled,
    Dead,
    Interrupted,
    Retry,
    Snooze,
    Succeeded,
)
from sqla_jobs.queue.settle import Verdict
from tests.support.deadlocks import no_deadlock
from tests.support.fleet import Fleet
from tests.support.gates import Background
from tests.support.rows import add_job
from tests.support.shop import Effect
from tests.support.waiting import wait_until

AT_ONCE = timedelta(0)
JOBS = 300

jobs = Jobs()
work = jobs.declare(
    "shop.storm",
    input=int,
    output=None,
    idempotency_key=lambda i: f"{i}",
    tenant=NO_TENANT,
    on_duplicate="rerun",
)


@pytest.fixture(autouse=True)
def _no_deadlock(engine, second_engine):
    with no_deadlock(engine, second_engine):
        yield


def complete(fleet: Fleet, worker: str, claimed: Claim) -> None:
    """Commit an effect together with the job's completion, as an attempt does."""
    with JobSession(fleet.engine) as session:
        attempt = fleet.guard(worker, claimed)
        guard(session, attempt)
        session.add(Effect(name=claimed.id, attempt=claimed.attempt))
        attempt.complete(None)
        session.commit()


def settle_surely(fleet: Fleet, worker: str, claimed: Claim, outcome: object) -> None:
    """Settle as the settler does: in a batch, else alone until the row is free."""
    if not fleet.settle(worker, (claimed, outcome)):
        verdict = wait_until(
            lambda: (
                (v := fleet.settle_alone(worker, claimed, outcome)) is not Verdict.BUSY
                and v
            )
        )
        assert verdict is Verdict.ACCEPTED


@pytest.mark.covers("C44")
def test_every_job_that_is_cancelled_at_a_random_moment_has_one_end(
    engine, second_engine
):
    """And its effect exists if and only if it completed."""
    rng = random.Random(44)
    fleet = Fleet(engine)
    with engine.begin() as connection:
        ids = [add_job(connection, max_attempts=2) for _ in range(JOBS)]
    worker = fleet.start(timedelta(hours=1))
    cancelled: set[UUID] = set()
    web = sessionmaker(second_engine, class_=JobSession)

    def cancel_all() -> None:
        for job_id in rng.sample(ids, JOBS):
            with suppress(JobNotCancellableError):
                with web.begin() as session:
                    cancel_job(session, job_id)
                cancelled.add(job_id)

    def handle(number: int, claimed: Claim) -> None:
        if number % 3 == 0:
            complete(fleet, worker, claimed)
        elif number % 3 == 1:
            settle_surely(fleet, worker, claimed, Succeeded())
        else:
            settle_surely(fleet, worker, claimed, Retry(AT_ONCE, "ValueError", "no"))

    def run_all() -> None:
        number = 0
        before: set[UUID] = set()
        while claims := fleet.claim(worker, 7):
            for claimed in claims:
                assert UUID(claimed.id) not in before, "a cancelled job was claimed"
                handle(number, claimed)
                number += 1
            before = set(cancelled)

    cancelling, running = Background(cancel_all), Background(run_all)
    cancelling.result(60)
    running.result(60)
    run_all()

    with Session(engine) as session:
        ended = {j.id: j for j in session.scalars(select(Job))}
        effects = set(session.scalars(select(Effect.name)))
        history: dict[UUID, list[str]] = {}
        for attempt in session.scalars(select(Attempt).order_by(Attempt.fence)):
            history.setdefault(attempt.job_id, []).append(attempt.outcome)
    states = {job.state for job in ended.values()}
    assert states <= {"succeeded", "cancelled", "dead"}
    assert {"succeeded", "cancelled"} <= states
    for job_id, job in ended.items():
        assert job.attempt == job.fence <= 2
        recorded = history.get(job_id, [])
        if job.state == "cancelled":
            assert job_id in cancelled
        if job.state == "dead":
            assert recorded == ["failed", "failed"]
        if job.state == "succeeded":
            assert recorded == ["failed"] * (job.attempt - 1)
        if str(job_id) in effects:
            assert job.state == "succeeded"


@pytest.mark.covers("C46", "T12")
def test_no_deadlock_when_everybody_meets_on_the_same_five_jobs(engine, second_engine):
    fleet = Fleet(engine)
    web = sessionmaker(second_engine, class_=JobSession)
    with web.begin() as session:
        ids = [session.enqueue(work, n) for n in range(5)]
    ids = [handle.id for handle in ids]
    until = time.monotonic() + 4
    slowest: list[float] = []
    stop = threading.Event()

    def often(act: Callable[[random.Random], object], seed: int) -> Background[int]:
        rng = random.Random(seed)

        def run() -> int:
            count = 0
            while time.monotonic() < until and not stop.is_set():
                began = time.monotonic()
                try:
                    act(rng)
                except BaseException:
                    stop.set()
                    raise
                slowest.append(time.monotonic() - began)
                count += 1
            return count

        return Background(run)

    def run_some(rng: random.Random) -> None:
        worker = fleet.start()
        claims = fleet.claim(worker, 3)
        outcomes = [
            Succeeded(),
            Retry(AT_ONCE, "ValueError", "no"),
            Dead("ValueError", "no"),
            Snooze(AT_ONCE),
            Cancelled(),
            Interrupted("shutdown"),
        ]
        fleet.renew(worker, claims)
        if rng.random() < 0.3:
            fleet.expire(worker)
        for claimed in claims[:1]:
            with suppress(LeaseLostError), JobSession(engine) as session:
                attempt = fleet.guard(worker, claimed)
                guard(session, attempt)
                session.add(Effect(name=f"{claimed.id} {claimed.fence}"))
                attempt.complete(None)
                session.commit()
        ended = [(c, rng.choice(outcomes)) for c in claims[1:]]
        left = {c.id for c, _ in ended} - fleet.settle(worker, *ended)
        for claimed, outcome in ended:
            if claimed.id in left:
                fleet.settle_alone(worker, claimed, outcome)
        fleet.expire(worker)

    def control(rng: random.Random) -> None:
        verb = rng.choice([cancel_job, retry_job])
        refusals = suppress(JobNotCancellableError, JobNotRetryableError)
        with refusals, web.begin() as session:
            verb(session, rng.choice(ids))

    def enqueue(rng: random.Random) -> None:
        with web.begin() as session:
            session.enqueue_many(work, rng.sample(range(5), 3))

    def sweep(rng: random.Random) -> None:
        fleet.rescue(grace=AT_ONCE, delay=AT_ONCE)

    acts = [run_some, run_some, run_some, control, control, enqueue, enqueue, sweep]
    counts = [often(act, seed) for seed, act in enumerate(acts)]

    done = [each.result(60) for each in counts]
    assert min(done) > 5, done
    assert max(slowest) < 5
    assert len(fleet.states()) == 5
