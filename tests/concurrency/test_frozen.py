"""A frozen process keeps its row locks: whoever rescues its jobs ends its sessions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from sqla_jobs import JobSession
from sqla_jobs.models import WorkerRow
from sqla_jobs.queue.fence import guard
from sqla_jobs.queue.rescue import end_backends
from tests.support.fleet import Fleet
from tests.support.frozen import GO_ON, hold_an_order
from tests.support.rows import add_job
from tests.support.shop import Order
from tests.support.waiting import wait_until

AT_ONCE = timedelta(0)


@pytest.fixture
def fleet(engine) -> Fleet:
    return Fleet(engine)


def end(fleet: Fleet, *worker_ids: str) -> int:
    with Session(fleet.autocommit) as session:
        return end_backends(session, worker_ids)


@pytest.mark.covers("T06")
def test_a_frozen_attempts_row_locks_do_not_block_the_next_attempt(
    fleet, pg_url, processes
):
    with JobSession(fleet.engine) as session, session.begin():
        session.add(Order(id=1, org_id=1))
        job_id = str(add_job(session))
    url = pg_url.render_as_string(hide_password=False)
    zombie = processes.call(hold_an_order, url, 0.5)
    worker = zombie.wait_for_line(r"worker (\S+)")[1]
    zombie.freeze()

    (rescued,) = wait_until(lambda: fleet.rescue(grace=AT_ONCE, delay=AT_ONCE))
    assert (rescued.id, rescued.worker_id) == (job_id, worker)
    assert end(fleet, worker) == 1

    heir = fleet.start()
    attempt = fleet.guard(heir, claimed := fleet.claim_one(heir))
    assert claimed.attempt == 2
    with JobSession(fleet.engine) as session:
        guard(session, attempt)
        session.execute(text("set local lock_timeout = '5s'"))
        session.execute(update(Order).values(note="heir"))
        attempt.complete(None)
        session.commit()

    zombie.thaw()
    zombie.signal_group(GO_ON)
    zombie.wait_for_line("refused: ")
    assert fleet.job(job_id).state == "succeeded"
    with Session(fleet.engine) as session:
        assert session.scalars(select(Order.note)).all() == ["heir"]


# --- whom it spares ------------------------------------------------------------------


@pytest.fixture
def session(second_engine):
    """A session in a transaction, as a handler has one."""
    with Session(second_engine) as session:
        yield session


def pid_of(session: Session) -> int:
    pid = session.scalar(text("select pg_backend_pid()"))
    assert isinstance(pid, int)
    return pid


def move_lease(fleet: Fleet, seconds: float) -> None:
    later = text("statement_timestamp() + :by * interval '1 second'")
    with Session(fleet.engine) as session, session.begin():
        session.execute(
            update(WorkerRow).values(lease_until=later.bindparams(by=seconds))
        )


def test_a_session_of_a_dead_worker_is_ended(fleet, session):
    worker = fleet.start()
    fleet.renew(worker, backends=[pid_of(session)])
    move_lease(fleet, 0)
    assert end(fleet, worker) == 1
    session.invalidate()
    wait_until(lambda: end(fleet, worker) == 0)


def test_a_live_workers_sessions_are_left_alone(fleet, session):
    worker = fleet.start()
    fleet.renew(worker, backends=[pid_of(session)])
    assert end(fleet, worker) == 0
    assert pid_of(session)


def test_another_workers_sessions_are_left_alone(fleet, session):
    mine, other = fleet.start(), fleet.start()
    fleet.renew(other, backends=[pid_of(session)])
    move_lease(fleet, 0)
    assert end(fleet, mine) == 0
    assert end(fleet) == 0


def test_a_session_that_stands_in_no_transaction_is_left_alone(fleet, session):
    """It holds nothing, and its pool has lent it to nobody."""
    worker = fleet.start()
    fleet.renew(worker, backends=[pid_of(session)])
    session.commit()
    move_lease(fleet, 0)
    assert end(fleet, worker) == 0
    assert pid_of(session)


def test_a_process_id_that_was_given_to_somebody_else_since_is_left_alone(
    fleet, session
):
    """The session began after the lease had ended."""
    worker = fleet.start()
    fleet.renew(worker, backends=[pid_of(session)])
    move_lease(fleet, -3600)
    assert end(fleet, worker) == 0
    assert pid_of(session)


def test_a_worker_that_told_of_no_sessions_has_none_to_end(fleet):
    worker = fleet.start()
    move_lease(fleet, 0)
    assert end(fleet, worker) == 0
