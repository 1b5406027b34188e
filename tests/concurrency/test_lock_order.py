"""Lock order: business rows first, jobs at the commit; nobody waits in a circle."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import JobSession
from sqla_jobs.exc import JobNotCancellableError
from sqla_jobs.queue.claim import Claim
from sqla_jobs.queue.control import cancel_job
from sqla_jobs.queue.fence import guard
from sqla_jobs.queue.outcome import Succeeded
from sqla_jobs.queue.renew import renew
from sqla_jobs.queue.rescue import rescue
from tests.support.deadlocks import no_deadlock
from tests.support.fleet import DELAY, GRACE, TTL, Fleet
from tests.support.gates import Background, stopped
from tests.support.rows import add_job
from tests.support.shop import Order

pytestmark = pytest.mark.covers("C44", "C46")


@pytest.fixture(autouse=True)
def _no_deadlock(engine, second_engine):
    with no_deadlock(engine, second_engine):
        yield


@pytest.fixture
def fleet(engine) -> Fleet:
    return Fleet(engine)


@pytest.fixture
def web(second_engine) -> sessionmaker[JobSession]:
    return sessionmaker(second_engine, class_=JobSession)


@pytest.fixture
def running(fleet) -> tuple[str, Claim, UUID]:
    with JobSession(fleet.engine) as session, session.begin():
        session.add(Order(id=1, org_id=1))
        job_id = add_job(session)
    worker = fleet.start()
    return worker, fleet.claim_one(worker), job_id


def write(session: Session, org_id: int) -> None:
    session.execute(update(Order).where(Order.id == 1).values(org_id=org_id))


def org_id(fleet: Fleet) -> int | None:
    with Session(fleet.engine) as session:
        return session.scalar(select(Order.org_id))


def test_a_request_that_cancels_first_and_writes_last_lets_the_handler_finish(
    fleet, web, running
):
    """It asked to cancel before the handler's rows; its lock is taken after them."""
    worker, claimed, job_id = running
    attempt = fleet.guard(worker, claimed)

    with JobSession(fleet.engine) as handler:
        guard(handler, attempt)
        write(handler, 7)

        def request() -> None:
            with web.begin() as session:
                cancel_job(session, job_id)
                write(session, 8)

        requesting = stopped(fleet.engine, request)
        attempt.complete(None)
        handler.commit()

    with pytest.raises(JobNotCancellableError):
        requesting.result()
    assert fleet.job(job_id).state == "succeeded"
    assert org_id(fleet) == 7


def test_a_request_that_comes_first_lets_the_handler_see_its_cancel(
    fleet, web, running
):
    worker, claimed, job_id = running
    attempt = fleet.guard(worker, claimed)

    with web() as session:
        cancel_job(session, job_id)
        write(session, 8)

        def handle() -> None:
            with JobSession(fleet.engine) as handler:
                guard(handler, attempt)
                write(handler, 7)
                attempt.complete(None)
                handler.commit()

        handling = stopped(fleet.engine, handle)
        session.commit()
        handling.result()

    assert fleet.job(job_id).state == "succeeded"
    assert fleet.job(job_id).cancel_requested_at is not None
    assert org_id(fleet) == 7


def test_a_request_between_the_handlers_settle_and_commit_waits_for_it(
    fleet, web, running
):
    worker, claimed, job_id = running
    attempt = fleet.guard(worker, claimed)

    def request() -> None:
        with web.begin() as session:
            cancel_job(session, job_id)

    with JobSession(fleet.engine) as handler:
        guard(handler, attempt)
        write(handler, 7)
        # What the commit does first; the row is locked from here on.
        attempt.settle(handler.connection())
        requesting = stopped(fleet.engine, request)
        handler.connection().connection.commit()

    with pytest.raises(JobNotCancellableError) as caught:
        requesting.result()
    assert caught.value.state == "succeeded"


def test_requests_that_cancel_the_same_jobs_in_opposite_orders_take_turns(fleet, web):
    with JobSession(fleet.engine) as session, session.begin():
        ids = [add_job(session) for _ in range(2)]

    with web() as first:
        cancel_job(first, ids[1])
        cancel_job(first, ids[0])
        first.write_jobs()

        def request() -> None:
            with web.begin() as session:
                cancel_job(session, ids[0])
                cancel_job(session, ids[1])

        requesting = stopped(fleet.engine, request)
        first.commit()
        with pytest.raises(JobNotCancellableError):
            requesting.result()

    assert set(fleet.states().values()) == {"cancelled"}


def test_settle_and_rescue_step_over_a_handler_that_commits(fleet, web, running):
    """Neither waits for its row: the batch and the sweep go on without it."""
    worker, claimed, _ = running
    with fleet.engine.begin() as connection:
        add_job(connection)
        add_job(connection)
    second, third = fleet.claim(worker, 2)
    attempt = fleet.guard(worker, claimed)

    with JobSession(fleet.engine) as handler:
        guard(handler, attempt)
        write(handler, 7)
        attempt.hold(handler.connection())

        batch = [(c, Succeeded()) for c in (claimed, second)]
        settling = Background(lambda: fleet.settle(worker, *batch))
        assert settling.result() == {second.id}
        fleet.expire(worker)
        sweeping = Background(fleet.rescue)
        assert [r.id for r in sweeping.result()] == [third.id]

        attempt.complete(None)
        handler.commit()
    assert fleet.job(claimed.id).state == "succeeded"


def test_a_heartbeat_waits_for_no_job(fleet, running):
    """It reads job rows without a lock: a long commit cannot cost the lease."""
    worker, claimed, _ = running
    attempt = fleet.guard(worker, claimed)
    with JobSession(fleet.engine) as handler:
        guard(handler, attempt)
        attempt.hold(handler.connection())
        beating = Background(lambda: fleet.renew(worker, [claimed]))
        assert beating.result(5).alive
        handler.rollback()


def test_a_beat_and_a_rescue_never_wait_for_each_other(fleet, second_engine, running):
    """The rescue reads workers' rows, the beat reads jobs' rows: without locks."""
    worker, claimed, _ = running
    others = Fleet(second_engine)
    with Session(fleet.engine) as beat:
        assert renew(beat, worker, ttl=TTL, running=[(claimed.id, 1)]).alive
        assert Background(others.rescue).result(5) == []
        beat.commit()

    fleet.expire(worker)
    with Session(fleet.engine) as sweep:
        assert len(rescue(sweep, grace=GRACE, delay=DELAY)) == 1
        beating = Background(lambda: others.renew(worker, [claimed]))
        assert not beating.result(5).alive
        sweep.commit()
