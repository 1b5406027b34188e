"""The promise, clauses 2 to 4: what an attempt may write, to the word."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, select

from sqla_jobs import JobSession
from sqla_jobs.exc import LeaseLostError
from sqla_jobs.queue.fence import guard
from sqla_jobs.queue.outcome import (
    Cancelled,
    Dead,
    Interrupted,
    Released,
    Retry,
    Snooze,
    Succeeded,
)
from tests.support.fleet import Fleet
from tests.support.rows import add_job
from tests.support.shop import Order

pytestmark = pytest.mark.conformance

NONE = timedelta(0)


@pytest.fixture
def fleet(engine) -> Fleet:
    return Fleet(engine)


@pytest.fixture
def job_id(Session):
    with Session.begin() as session:
        return str(add_job(session))


def lose(fleet: Fleet):
    """Let a worker claim the job and lose it; return worker and claim."""
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    fleet.expire(worker)
    (rescued,) = fleet.rescue(delay=NONE)
    assert rescued.id == claimed.id
    return worker, claimed


def orders(Session) -> int:
    with Session() as session:
        return session.scalar(select(func.count(Order.id)))


def test_promise_2_a_job_runs_at_least_once(fleet, job_id):
    """Whatever becomes of a worker, the job is there for the next one."""
    for number in (1, 2):
        _, claimed = lose(fleet)
        assert (claimed.id, claimed.attempt) == (job_id, number)

    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    assert fleet.settle(worker, (claimed, Succeeded())) == {job_id}
    assert fleet.job(job_id).state == "succeeded"


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded('"mine"'),
        Retry(NONE, "E", "e"),
        Dead("E", "e"),
        Snooze(NONE),
        Cancelled(),
        Interrupted("stop"),
        Released(),
    ],
    ids=lambda outcome: type(outcome).__name__.lower(),
)
def test_promise_3_no_result_and_no_retry_of_a_lost_attempt_is_accepted(
    fleet, job_id, outcome
):
    zombie, old = lose(fleet)
    heir = fleet.start()
    new = fleet.claim_one(heir)

    assert fleet.settle(zombie, (old, outcome)) == set()

    job = fleet.job(job_id)
    assert (job.state, job.fence, str(job.worker_id)) == ("running", new.fence, heir)
    assert fleet.history(job_id) == [(1, "lost")]
    assert fleet.settle(heir, (new, Succeeded())) == {job_id}


@pytest.mark.parametrize("completing", [False, True], ids=["in-between", "completing"])
def test_promise_3_no_commit_of_a_lost_attempts_session_is_accepted(
    fleet, job_id, Session, completing
):
    zombie, old = lose(fleet)
    attempt = fleet.guard(zombie, old)

    with JobSession(fleet.engine) as session:
        guard(session, attempt)
        session.add(Order(id=1, org_id=1))
        if completing:
            attempt.complete(None)
        with pytest.raises(LeaseLostError):
            session.commit()

    assert orders(Session) == 0
    assert fleet.job(job_id).state == "ready"


def test_promise_4_what_the_completing_transaction_commits_happens_exactly_once(
    fleet, job_id, Session
):
    """Two attempts did the same work; the rows of one of them are there."""
    zombie, old = lose(fleet)
    heir = fleet.start()
    new = fleet.claim_one(heir)
    refused = 0
    attempts = ((heir, new), (zombie, old), (heir, new))
    for number, (worker, claimed) in enumerate(attempts):
        attempt = fleet.guard(worker, claimed)
        with JobSession(fleet.engine) as session:
            guard(session, attempt)
            session.add(Order(id=number, org_id=1))
            attempt.complete(None)
            try:
                session.commit()
            except LeaseLostError:
                refused += 1

    assert refused == 2
    assert orders(Session) == 1
    assert fleet.job(job_id).state == "succeeded"


def test_promise_4_what_did_not_complete_the_job_leaves_nothing(fleet, job_id, Session):
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    attempt = fleet.guard(worker, claimed)
    with JobSession(fleet.engine) as session:
        guard(session, attempt)
        session.add(Order(id=1, org_id=1))
        session.flush()
        session.rollback()

    assert fleet.settle(worker, (claimed, Retry(NONE, "E", "e"))) == {job_id}
    assert orders(Session) == 0


def test_promise_4_what_a_handler_commits_by_itself_is_fenced_but_stays(
    fleet, job_id, Session
):
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    attempt = fleet.guard(worker, claimed)
    with JobSession(fleet.engine) as session:
        guard(session, attempt)
        session.add(Order(id=1, org_id=1))
        session.commit()
        assert fleet.settle(worker, (claimed, Retry(NONE, "E", "e"))) == {job_id}
        session.add(Order(id=2, org_id=1))
        with pytest.raises(LeaseLostError):
            session.commit()

    assert orders(Session) == 1
