"""Rescue against whoever else has an eye on the job: one of them wins, whole."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from sqla_jobs.models import Job
from sqla_jobs.queue.claim import Claim
from sqla_jobs.queue.control import cancel_job
from sqla_jobs.queue.outcome import Retry, Succeeded
from sqla_jobs.queue.settle import Verdict
from tests.support.fleet import Fleet
from tests.support.gates import AFTER_RESCUE_LOCKS, BEFORE_RESCUE_LOCKS, gate, stopped
from tests.support.rows import add_job

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.needs("skip_locked"),
    pytest.mark.covers("T01"),
]

AT_ONCE = timedelta(0)


@pytest.fixture
def fleet(engine) -> Fleet:
    """The rescuer, whose statements can be stopped."""
    return Fleet(engine)


@pytest.fixture
def others(second_engine) -> Fleet:
    """Everybody else."""
    return Fleet(second_engine)


@pytest.fixture
def lost(others) -> tuple[str, Claim]:
    """A job whose worker's lease has ended, though it still works."""
    with others.engine.begin() as connection:
        add_job(connection)
    worker = others.start()
    claimed = others.claim_one(worker)
    others.expire(worker)
    return worker, claimed


def test_a_settle_that_comes_before_the_lock_is_not_undone(fleet, others, lost):
    worker, claimed = lost
    with gate(fleet.engine, *BEFORE_RESCUE_LOCKS) as open_gate:
        rescuing = stopped(others.engine, fleet.rescue)
        assert others.settle(worker, (claimed, Succeeded())) == {claimed.id}
        open_gate()
        assert rescuing.result() == []

    job = others.job(claimed.id)
    assert (job.state, job.fence, others.history(claimed.id)) == ("succeeded", 1, [])


def test_a_retry_that_was_claimed_by_a_live_worker_is_left_to_it(fleet, others, lost):
    """The rescuer has seen a dead owner; the row it locks has another one."""
    worker, claimed = lost
    with gate(fleet.engine, *BEFORE_RESCUE_LOCKS) as open_gate:
        rescuing = stopped(others.engine, fleet.rescue)
        others.settle(worker, (claimed, Retry(AT_ONCE, "ValueError", "no")))
        heir = others.start()
        again = others.claim_one(heir)
        open_gate()
        assert rescuing.result() == []

    assert others.history(claimed.id) == [(1, "failed")]
    assert others.settle(heir, (again, Succeeded())) == {again.id}


def test_a_settle_that_comes_after_the_lock_is_too_late(fleet, others, lost):
    worker, claimed = lost
    with gate(fleet.engine, *AFTER_RESCUE_LOCKS) as open_gate:
        rescuing = stopped(others.engine, fleet.rescue)
        assert others.settle(worker, (claimed, Succeeded())) == set()
        verdict = others.settle_alone(worker, claimed, Succeeded(), "20ms")
        assert verdict is Verdict.BUSY
        open_gate()
        assert [r.id for r in rescuing.result()] == [claimed.id]

    assert others.settle_alone(worker, claimed, Succeeded()) is Verdict.STALE
    job = others.job(claimed.id)
    assert (job.state, job.fence) == ("ready", 2)
    assert others.history(claimed.id) == [(1, "lost")]


def test_a_settle_that_waits_for_the_rescue_is_refused_by_it(fleet, others, lost):
    worker, claimed = lost
    with gate(fleet.engine, *AFTER_RESCUE_LOCKS) as open_gate:
        rescuing = stopped(others.engine, fleet.rescue)

        def settle() -> Verdict:
            return others.settle_alone(worker, claimed, Succeeded(), "20s")

        settling = stopped(others.engine, settle, count=2)
        open_gate()
        assert len(rescuing.result()) == 1
        assert settling.result() is Verdict.STALE


def test_a_cancel_that_comes_before_the_lock_decides_what_becomes_of_it(
    fleet, others, lost
):
    _, claimed = lost
    with gate(fleet.engine, *BEFORE_RESCUE_LOCKS) as open_gate:
        rescuing = stopped(others.engine, fleet.rescue)
        with Session(others.engine) as session, session.begin():
            cancel_job(session, others.job(claimed.id).id)
        open_gate()
        assert [r.state for r in rescuing.result()] == ["cancelled"]

    assert others.job(claimed.id).state == "cancelled"


def test_two_rescuers_share_what_there_is(fleet, others):
    with others.engine.begin() as connection:
        ids = {str(add_job(connection)) for _ in range(20)}
    worker = others.start()
    others.claim(worker)
    others.expire(worker)
    with gate(fleet.engine, *AFTER_RESCUE_LOCKS) as open_gate:
        rescuing = stopped(others.engine, lambda: fleet.rescue(limit=12))
        theirs = {r.id for r in others.rescue(limit=12)}
        open_gate()
        mine = {r.id for r in rescuing.result()}

    assert (len(mine), len(theirs)) == (12, 8)
    assert mine | theirs == ids
    assert {others.job(i).fence for i in ids} == {2}


@pytest.mark.covers("T08", "C24")
def test_rows_that_others_hold_hide_nobody_behind_them(fleet, others):
    """600 orphans stand first and are held; one sweep frees 100 that come after."""
    gone = uuid4()
    with others.engine.begin() as connection:
        held = [
            add_job(connection, "running", worker_id=gone, priority=0)
            for _ in range(600)
        ]
        free = [add_job(connection, "running", worker_id=gone) for _ in range(100)]

    with Session(others.engine) as holder:
        lock = text("select from sqla_job where id = any(:ids) for update")
        holder.execute(lock, {"ids": held})
        rescued = fleet.rescue(limit=500)
        holder.rollback()

    assert {r.id for r in rescued} == {str(i) for i in free}
    assert len(fleet.rescue(limit=500)) == 500
    assert len(fleet.rescue(limit=500)) == 100


@pytest.mark.covers("C24")
def test_healthy_jobs_in_front_hide_nobody_behind_them(fleet, others):
    """200 long jobs of a live worker with lower ids, and a batch of 100."""
    live = others.start(timedelta(hours=1))
    with others.engine.begin() as connection:
        for _ in range(200):
            add_job(connection, "running", worker_id=live)
        orphan = add_job(connection, "running", worker_id=uuid4())

    assert [r.id for r in fleet.rescue(limit=100)] == [str(orphan)]
    assert fleet.rescue(limit=100) == []


@pytest.mark.covers("C24")
def test_a_stream_of_new_work_hides_no_orphan(fleet, others):
    """What is rescued is found by its owner, not by its place among what is ready."""
    with others.engine.begin() as connection:
        orphan = add_job(connection, "running", worker_id=uuid4(), priority=9)
    worker = others.start()
    for _ in range(5):
        with others.engine.begin() as connection:
            for _ in range(50):
                add_job(connection, priority=0)
        assert len(others.claim(worker, 50)) == 50

    assert [r.id for r in fleet.rescue(limit=1)] == [str(orphan)]


@pytest.mark.covers("T02")
def test_a_claim_that_never_started_costs_one_attempt_each_time(fleet, others):
    """The process dies between its claim's commit and the start, every time."""
    with others.engine.begin() as connection:
        ids = [str(add_job(connection, max_attempts=3)) for _ in range(30)]
    for attempt in range(1, 4):
        worker = others.start()
        assert {c.attempt for c in others.claim(worker)} == {attempt}
        others.expire(worker)
        assert len(fleet.rescue(delay=AT_ONCE)) == 30

    assert others.claim(others.start()) == []
    with Session(others.engine) as session:
        jobs = [session.get_one(Job, others.job(i).id) for i in ids]
    assert {(j.state, j.attempt, j.fence) for j in jobs} == {("dead", 3, 6)}
    assert others.history(ids[0]) == [(1, "lost"), (2, "lost"), (3, "lost")]
