"""Leases where a heartbeat may stand behind somebody's long transaction."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from sqla_jobs import clock
from sqla_jobs.dialects.sqlite import SUSPICION
from sqla_jobs.queue.outcome import Succeeded
from sqla_jobs.worker.lease import Lease, lease_clock
from tests.support.fleet import GRACE, TTL, Fleet
from tests.support.gates import Background
from tests.support.rows import NOW, add_job
from tests.support.waiting import wait_until
from tests.worker import app

SECOND = timedelta(seconds=1)
RIPE = timedelta(seconds=SUSPICION)


@pytest.fixture
def fleet(engine) -> Fleet:
    return Fleet(engine)


@pytest.fixture
def frozen() -> Iterator[None]:
    clock.freeze(NOW)
    yield
    clock.thaw()


@pytest.fixture
def late(frozen, fleet, engine):
    """A worker whose lease and grace have just passed, and what it runs."""
    with engine.begin() as connection:
        add_job(connection)
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    clock.advance(TTL + GRACE)
    return worker, claimed


def test_a_first_look_only_suspects(fleet, late):
    _, claimed = late
    assert fleet.look() == []
    clock.advance(RIPE - timedelta(milliseconds=1))
    assert fleet.look() == []
    clock.advance(timedelta(milliseconds=1))
    assert [r.id for r in fleet.look()] == [claimed.id]


def test_a_beat_after_the_first_look_lifts_the_suspicion(fleet, late):
    worker, claimed = late
    assert fleet.look() == []
    clock.advance(RIPE - SECOND)
    assert fleet.renew(worker, [claimed]).alive
    clock.advance(2 * RIPE)
    assert fleet.look() == []
    assert fleet.settle_alone(worker, claimed, Succeeded()).value == "accepted"


def test_a_beat_is_refused_from_the_moment_a_look_may_take(fleet, late):
    """One of the two is allowed at any time, never both."""
    worker, claimed = late
    fleet.look()
    clock.advance(RIPE)
    assert not fleet.renew(worker, [claimed]).alive
    assert [r.id for r in fleet.look()] == [claimed.id]


def test_a_deadline_waits_for_an_owner_that_stands_in_line(fleet, engine, frozen):
    """Its outcome may stand there too; a second look takes it from the dead."""
    with engine.begin() as connection:
        add_job(connection)
    worker = fleet.start()
    claimed = fleet.claim_one(worker, limits={"shop.work": 1.0})
    clock.advance(TTL + GRACE + SECOND)
    assert fleet.look() == []
    assert fleet.settle_alone(worker, claimed, Succeeded()).value == "accepted"


def test_a_look_that_had_to_wait_takes_nothing(fleet, late, engine, second_engine):
    """Whoever else waited comes first."""
    _, claimed = late
    fleet.look()
    clock.advance(RIPE)
    with second_engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        started = time.monotonic()
        waiting = Background(fleet.look)
        wait_until(lambda: time.monotonic() - started > 1.3 or waiting.done)
        other.rollback()
    assert waiting.result() == []
    assert [r.id for r in fleet.look()] == [claimed.id]


def test_time_in_line_does_not_count_against_the_lease():
    lease = Lease(0.3)
    lease.renewed(lease_clock())
    until = lease.until
    with pytest.raises(OperationalError), lease.in_line():
        wait_until(lambda: lease_clock() > until)
        assert lease.valid
        raise OperationalError("", None, _busy())
    assert lease.until > until
    assert lease.valid
    wait_until(lambda: not lease.valid)


def test_other_trouble_of_a_beat_counts():
    lease = Lease(0.3)
    lease.renewed(lease_clock())
    until = lease.until
    with pytest.raises(ConnectionError), lease.in_line():
        wait_until(lambda: lease_clock() > until)
        raise ConnectionError
    assert not lease.valid


@contextmanager
def importing(processes, seconds: float):
    """Let another process write for *seconds* in one transaction."""
    child = processes.call(long_import, seconds)
    child.wait_for_line("writing")
    yield child
    assert child.wait(60) == 0, child.output


def long_import(seconds: float) -> None:
    engine = create_engine(os.environ["SQLA_JOBS_DATABASE_URL"])
    with engine.begin() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.execute(text("insert into shop_order (org_id) values (1)"))
        print("writing", flush=True)
        time.sleep(seconds)


@pytest.mark.timeout(120)
def test_a_rescuer_behind_a_long_import_does_not_beat_the_heartbeat(
    queue, spawn, processes
):
    """Both wait for their turn, far past lease and grace; the job stays where it is."""
    (job_id,) = queue.add(app.hold, "x")
    owner = spawn(lease_ttl="2s", queues={"default": 1})
    queue.wait_for_visits(1)
    rescuers = [spawn(lease_ttl="2s", queues={"other": 1}) for _ in range(2)]
    fence = queue.job(job_id).fence
    for _ in range(2):
        with importing(processes, 7.0):
            pass
        # A look of each rescuer after the import, and the second one.
        until = time.monotonic() + 2.0
        wait_until(lambda until=until: time.monotonic() > until)
    job = queue.job(job_id)
    assert (job.state, job.fence) == ("running", fence)
    queue.go()
    queue.wait_for_states(succeeded=1)
    assert queue.visits() == [("x", 1)]
    assert queue.history(job_id) == []
    for worker in (owner, *rescuers):
        worker.terminate()
        assert worker.wait() == 0
        assert "lost its lease" not in worker.output
        assert "rescued" not in worker.output.replace("rescued=0", "")


def test_a_killed_workers_jobs_run_again(queue, spawn):
    (job_id,) = queue.add(app.hold, "x")
    owner = spawn(lease_ttl="1s", queues={"default": 1})
    queue.wait_for_visits(1)
    spawn(lease_ttl="1s")
    owner.kill()
    queue.wait_for_visits(2, timeout=30.0)
    queue.go()
    queue.wait_for_states(succeeded=1)
    assert queue.history(job_id) == ["lost"]


def _busy() -> BaseException:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error
