"""The session of an attempt: every commit of it is fenced, and carries its jobs."""

from __future__ import annotations

import os
import signal

import pytest
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.orm import Session as PlainSession

from sqla_jobs import JobSession
from sqla_jobs.dialects.postgresql import settle_sql
from sqla_jobs.exc import DuplicateJobError, LeaseLostError
from sqla_jobs.models import Job
from sqla_jobs.queue.fence import AttemptGuard, guard
from tests.support.enqueuing import (
    Work,
    borrow_and_commit,
    keys,
    nothing_lasts,
    orders,
    stored,
    work,
)
from tests.support.fleet import GRACE, LABEL, Fleet
from tests.support.hints import Hints
from tests.support.shop import Order
from tests.support.waiting import wait_until


@pytest.fixture
def fleet(second_engine):
    return Fleet(second_engine)


@pytest.fixture
def one(make_engine):
    """The application's engine: a pool of one connection."""
    return make_engine(pool_size=1, max_overflow=0)


@pytest.fixture
def claimed(fleet, Session):
    with Session.begin() as session:
        session.enqueue(work, Work("job", 1))
    return fleet.claim_one(fleet.start())


@pytest.fixture
def attempt(fleet, claimed):
    worker = str(fleet.job(claimed.id).worker_id)
    return fleet.guard(worker, claimed)


@pytest.fixture
def session(one, attempt):
    with JobSession(one) as session:
        guard(session, attempt)
        yield session


def lose(fleet, claimed):
    """Let somebody else rescue the job, and claim it."""
    fleet.expire(str(fleet.job(claimed.id).worker_id))
    assert fleet.rescue(grace=GRACE)
    with fleet.autocommit.connect() as connection:
        connection.execute(text("UPDATE sqla_job SET run_at = now()"))
    assert fleet.claim_one(fleet.start()).id == claimed.id


def test_each_commit_in_the_middle_is_fenced(
    session, fleet, claimed, one, second_engine
):
    """The first is accepted, the second refused: the job was lost in between."""
    session.add(Order(id=1, org_id=1))
    session.enqueue(work, Work("first"))
    session.commit()
    lose(fleet, claimed)
    with nothing_lasts(one, second_engine):
        session.add(Order(id=2, org_id=1))
        session.enqueue(work, Work("second"))
        with pytest.raises(LeaseLostError):
            session.commit()
        session.close()
    assert (orders(second_engine), keys(second_engine)) == ([1], ["first", "job"])


@pytest.mark.parametrize("completing", [True, False])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_lost_attempt_leaves_nothing_for_the_next_borrower(
    session, attempt, fleet, claimed, one, second_engine, completing, read_only
):
    session.scalars(select(Order)).all()
    lose(fleet, claimed)
    with nothing_lasts(one, second_engine):
        if not read_only:
            session.add(Order(id=1, org_id=1))
            session.flush()
        if completing:
            attempt.complete(None)
        with pytest.raises(LeaseLostError):
            session.commit()
        session.close()
    assert stored(second_engine, "job").state == "running"


def test_jobs_written_early_go_with_a_lost_attempt(
    session, fleet, claimed, one, second_engine
):
    session.enqueue(work, Work("early"))
    session.write_jobs()
    with session.begin_nested():
        session.enqueue(work, Work("inside"))
    lose(fleet, claimed)
    with nothing_lasts(one, second_engine):
        with pytest.raises(LeaseLostError):
            session.commit()
        session.close()
        borrow_and_commit(one)
    assert keys(second_engine) == ["job"]


def test_a_savepoint_of_the_handler_is_no_commit(
    session, attempt, second_engine, claimed
):
    """Neither its release nor its rollback settles; the commit does, with its jobs."""
    attempt.complete('"done"')
    with session.begin_nested():
        session.add(Order(id=1, org_id=1))
        session.enqueue(work, Work("kept"))
    assert stored(second_engine, "job").state == "running"
    nested = session.begin_nested()
    session.add(Order(id=2, org_id=1))
    session.enqueue(work, Work("lost"))
    session.flush()
    nested.rollback()
    assert not attempt.completed
    session.commit()
    assert attempt.completed
    assert stored(second_engine, "job").state == "succeeded"
    assert (orders(second_engine), keys(second_engine)) == ([1], ["job", "kept"])


def test_jobs_of_a_completing_commit_ride_along_and_wake(
    session, attempt, second_engine, pg_url
):
    with Hints(pg_url) as hints:
        session.enqueue(work, Work("next"))
        attempt.complete(None)
        session.commit()
        hints.wait_for("default")
    assert stored(second_engine, "job").state == "succeeded"
    assert stored(second_engine, "next").state == "ready"


def test_a_refused_job_keeps_the_attempt_from_completing(
    session, attempt, fleet, one, second_engine, claimed
):
    """Completion and its jobs are one: the attempt still owns its job after it."""
    with nothing_lasts(one, second_engine):
        session.add(Order(id=1, org_id=1))
        session.enqueue(work, Work("next"))
        session.enqueue(work, Work("job"), on_duplicate="error")
        attempt.complete(None)
        with pytest.raises(DuplicateJobError):
            session.commit()
        session.close()
    assert stored(second_engine, "job").state == "running"
    assert fleet.renew(attempt.worker_id, [claimed]).lost == []


def test_an_attempt_that_reruns_its_own_job_runs_again(
    session, attempt, second_engine, fleet
):
    """The rerun is written before the completion, in one transaction."""
    handle = session.enqueue(work, Work("job", 2), on_duplicate="rerun")
    attempt.complete('"first"')
    session.commit()
    assert handle.outcome == "rerun"
    job = stored(second_engine, "job")
    assert (job.state, job.rerun, job.input["n"]) == ("ready", False, 2)
    assert fleet.claim_one(attempt.worker_id).attempt == 1


def test_the_last_commit_settles_once_and_later_ones_are_refused(
    session, attempt, second_engine
):
    attempt.complete(None)
    session.commit()
    session.add(Order(id=1, org_id=1))
    with pytest.raises(LeaseLostError):
        session.commit()
    session.rollback()
    assert orders(second_engine) == []


# --- frozen between its last statement and its COMMIT ------------------------------------


def freeze_before_commit(job_id, fence, number, worker_id, completing):
    """Be a worker's process that is stopped in the moment before its COMMIT."""
    for name in ("HOLD", "SETTLE_ALONE"):
        shorter = getattr(settle_sql, name).replace("'15s'", "'500ms'")
        setattr(settle_sql, name, shorter)
    engine = create_engine(os.environ["SQLA_JOBS_DATABASE_URL"])
    attempt = AttemptGuard(job_id, fence, number, worker_id=worker_id, worker=LABEL)
    with JobSession(engine) as session:
        guard(session, attempt)
        session.add(Order(id=1, org_id=1))
        if completing:
            attempt.complete(None)
        # Engines' listeners come after ours: the row is held by now.
        event.listen(engine, "commit", lambda c: os.kill(os.getpid(), signal.SIGSTOP))
        try:
            session.commit()
        except Exception as error:
            print("refused", type(error).__name__, flush=True)


@pytest.mark.parametrize("completing", [True, False])
def test_a_process_frozen_before_its_commit_hides_its_job_for_seconds_only(
    processes, fleet, claimed, attempt, second_engine, completing
):
    """The server ends its session; then the rescue gets the row, and it nothing."""
    child = processes.call(
        freeze_before_commit,
        claimed.id,
        claimed.fence,
        claimed.attempt,
        attempt.worker_id,
        completing,
    )
    wait_until(child._is_frozen, 20, what="the worker frozen")
    fleet.expire(attempt.worker_id)
    (rescued,) = wait_until(lambda: fleet.rescue(grace=GRACE), 10, what="rescued")
    assert (rescued.id, rescued.state) == (claimed.id, "ready")
    child.thaw()
    child.wait_for_line("refused (Operational|Internal)Error")
    assert child.wait() == 0
    assert orders(second_engine) == []
    with PlainSession(second_engine) as session:
        assert session.get_one(Job, rescued.id).fence == claimed.fence + 1
