"""What a rescue frees, when, and what it writes down."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from sqla_jobs import clock
from sqla_jobs.queue.control import cancel_job
from sqla_jobs.queue.outcome import Succeeded
from sqla_jobs.queue.renew import reap_workers
from tests.support.fleet import DELAY, GRACE, TTL, Fleet
from tests.support.rows import NOW, add_job

pytestmark = pytest.mark.conformance

SECOND = timedelta(seconds=1)
TICK = timedelta(milliseconds=1)


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    clock.freeze(NOW)
    yield
    clock.thaw()


@pytest.fixture
def fleet(engine) -> Fleet:
    return Fleet(engine)


def add(fleet: Fleet, **values: object) -> str:
    with fleet.engine.begin() as connection:
        return str(add_job(connection, **values))


def cancel(fleet: Fleet, job_id: str) -> None:
    with Session(fleet.engine) as session, session.begin():
        cancel_job(session, fleet.job(job_id).id, reason="customer left")


@pytest.mark.covers("C19")
def test_a_dead_workers_job_runs_again_and_its_history_names_the_worker(fleet):
    job_id = add(fleet)
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    clock.advance(TTL + GRACE)

    (rescued,) = fleet.rescue()

    assert (rescued.id, rescued.name, rescued.queue) == (job_id, "shop.work", "default")
    assert (rescued.state, rescued.attempt, rescued.timed_out) == ("ready", 1, False)
    assert rescued.worker_id == worker
    job = fleet.job(job_id)
    assert (job.state, job.fence, job.attempt) == ("ready", claimed.fence + 1, 1)
    assert job.run_at == NOW + TTL + GRACE + DELAY
    assert (job.worker_id, job.deadline_at, job.finished_at) == (None, None, None)
    (attempt,) = fleet.attempts(job_id)
    assert (attempt.number, attempt.fence, attempt.outcome) == (1, 1, "lost")
    assert (str(attempt.worker_id), attempt.worker) == (worker, "host-1:42")
    assert (attempt.started_at, attempt.ended_at) == (NOW, NOW + TTL + GRACE)
    assert attempt.error_type == "WorkerLost"
    clock.advance(DELAY)
    assert fleet.claim_one(fleet.start()).attempt == 2


def test_nobody_is_rescued_before_the_lease_and_the_grace_are_over(fleet):
    add(fleet)
    worker = fleet.start()
    fleet.claim_one(worker)
    clock.advance(TTL + GRACE - TICK)
    assert fleet.rescue() == []
    clock.advance(TICK)
    assert len(fleet.rescue()) == 1


def test_a_beat_puts_the_rescue_off(fleet):
    add(fleet)
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    clock.advance(TTL - TICK)
    assert fleet.renew(worker, [claimed]).alive
    clock.advance(TTL - TICK)
    assert fleet.rescue(grace=timedelta(0)) == []
    clock.advance(TICK)
    assert len(fleet.rescue(grace=timedelta(0))) == 1


def test_a_lease_that_was_ended_on_purpose_needs_no_grace(fleet):
    add(fleet)
    worker = fleet.start()
    fleet.claim_one(worker)
    fleet.expire(worker)
    assert len(fleet.rescue(grace=timedelta(minutes=10))) == 1


def test_jobs_of_a_worker_whose_row_is_gone_are_rescued(fleet):
    job_id = add(fleet)
    worker = fleet.start()
    fleet.claim_one(worker)
    clock.advance(timedelta(days=2))
    with Session(fleet.engine) as session, session.begin():
        assert reap_workers(session, after=timedelta(days=1)) == 1

    assert [r.worker_id for r in fleet.rescue()] == [worker]
    (attempt,) = fleet.attempts(job_id)
    assert (str(attempt.worker_id), attempt.worker) == (worker, None)


def test_only_what_runs_is_rescued(fleet):
    add(fleet)
    with fleet.engine.begin() as connection:
        for state in ("waiting", "succeeded", "dead", "cancelled"):
            add_job(connection, state)
    before = fleet.states()
    clock.advance(timedelta(days=9))

    assert fleet.rescue() == []
    assert fleet.states() == before


def test_a_passed_deadline_is_a_time_out_though_the_worker_lives(fleet):
    job_id = add(fleet)
    worker = fleet.start(timedelta(hours=1))
    claimed = fleet.claim_one(worker, limits={"shop.work": 20.0})
    clock.advance(20 * SECOND + GRACE)
    assert fleet.rescue() == []
    clock.advance(TICK)

    (rescued,) = fleet.rescue()

    assert (rescued.state, rescued.timed_out) == ("ready", True)
    assert fleet.history(job_id) == [(1, "timed_out")]
    assert fleet.attempts(job_id)[0].error_type == "JobTimeoutError"
    assert fleet.renew(worker, [claimed]).lost == [job_id]
    assert fleet.settle(worker, (claimed, Succeeded())) == set()


def test_a_dead_worker_whose_deadline_passed_as_well_is_lost(fleet):
    job_id = add(fleet)
    worker = fleet.start()
    fleet.claim_one(worker, limits={"shop.work": 1.0})
    clock.advance(TTL + GRACE + SECOND)

    (rescued,) = fleet.rescue()

    assert not rescued.timed_out
    assert fleet.history(job_id) == [(1, "lost")]


def test_an_attempt_that_does_not_stop_when_asked_is_ended_after_the_grace(fleet):
    """Its worker lives, so it was not lost: the history says what it was."""
    job_id = add(fleet)
    worker = fleet.start(timedelta(hours=1))
    claimed = fleet.claim_one(worker)
    cancel(fleet, job_id)
    clock.advance(GRACE)
    assert fleet.rescue() == []
    clock.advance(TICK)

    assert [r.state for r in fleet.rescue()] == ["cancelled"]

    job = fleet.job(job_id)
    assert (job.state, job.fence) == ("cancelled", claimed.fence + 1)
    assert job.finished_at == NOW + GRACE + TICK
    (attempt,) = fleet.attempts(job_id)
    assert attempt.outcome == "cancelled"
    assert "lease" not in attempt.error
    assert fleet.settle(worker, (claimed, Succeeded())) == set()


def test_a_lost_attempt_of_a_cancelled_job_does_not_run_again(fleet):
    job_id = add(fleet)
    worker = fleet.start()
    fleet.claim_one(worker)
    cancel(fleet, job_id)
    fleet.expire(worker)

    assert [r.state for r in fleet.rescue()] == ["cancelled"]
    assert fleet.history(job_id) == [(1, "lost")]
    assert fleet.claim(fleet.start()) == []


def test_the_last_attempt_that_is_lost_is_a_dead_letter(fleet):
    job_id = add(fleet, max_attempts=1)
    worker = fleet.start()
    fleet.claim_one(worker)
    fleet.expire(worker)

    assert [r.state for r in fleet.rescue()] == ["dead"]
    assert fleet.job(job_id).finished_at == NOW


def test_a_sweep_frees_no_more_than_its_limit(fleet):
    for _ in range(7):
        add(fleet)
    worker = fleet.start()
    fleet.claim(worker)
    fleet.expire(worker)

    assert [len(fleet.rescue(limit=3)) for _ in range(4)] == [3, 3, 1, 0]
