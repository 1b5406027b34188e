"""Stopping: every phase in its order, each bounded, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from sqla_jobs.models import Job
from tests.support.waiting import wait_until
from tests.worker import app

pytestmark = pytest.mark.each_kind


def attempts_of(queue, *states):
    query = select(Job.name, Job.state, Job.attempt).where(Job.state.in_(states))
    with Session(queue.look) as session:
        return [tuple(row) for row in session.execute(query)]


@contextlib.contextmanager
def away(databases, name):
    """Cut every connection to the database *name*, and let no new one in."""
    with databases.server.connect() as admin:
        admin.execute(f'alter database "{name}" allow_connections false')
        try:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = %s",
                [name],
            )
            yield
        finally:
            admin.execute(f'alter database "{name}" allow_connections true')


@pytest.mark.covers("T63")
def test_t63_a_stop_with_long_short_stuck_and_prefetched_jobs(queue, spawn):
    """It ends within its limits; nothing waits for a lease to run out."""
    (short,) = queue.add(app.nap, "short", seconds=0.8, priority=0)
    (long,) = queue.add(app.hold, "long", priority=0)
    (stuck,) = queue.add(app.deaf, "stuck", priority=0)
    (sleeper,) = queue.add(app.nap_async, "sleeper", seconds=600.0, priority=0)
    rest = queue.add(app.noop, *[f"rest {n}" for n in range(20)])
    worker = spawn(queues={"default": 4}, prefetch=50, grace="2s", lease_ttl="60s")
    queue.wait_for_visits(4)
    wait_until(lambda: queue.states() == {"running": 24})

    asked = time.monotonic()
    worker.terminate()
    # At once, long before the grace is over:
    wait_until(lambda: queue.states().get("ready") == 20, 1.5)
    assert all(queue.job(job_id).attempt == 0 for job_id in rest)
    assert worker.wait(20.0) == 0
    assert time.monotonic() - asked < 2.0 + 2.0 + 5.0

    assert queue.job(short).state == "succeeded"
    # It looks at ctx.cancelled and returns: then it is done.
    assert queue.job(long).state == "succeeded"
    # Cancelled by the worker: to be run again, and not counted.
    assert queue.job(sleeper).state == "ready"
    assert queue.job(sleeper).attempt == 0
    assert queue.history(sleeper) == ["interrupted"]
    # Nobody can end a thread: its job is rescued at once, as the lease has expired.
    assert queue.job(stuck).state == "running"
    queue.go()
    other = spawn(lease_ttl="60s")
    wait_until(lambda: queue.job(stuck).state == "succeeded", 15.0)
    assert queue.history(stuck) == ["lost"]
    other.terminate()
    assert other.wait() == 0


@pytest.mark.covers("C27")
def test_c27_what_was_claimed_and_not_started_runs_elsewhere_at_once(queue, spawn):
    """Prefetch 20, one at a time: 19 are released with attempt 0, no lease is waited for."""
    queue.add(app.deaf, "first", priority=0)
    others = queue.add(app.visit, *[f"{n}" for n in range(19)])
    worker = spawn(queues={"default": 1}, prefetch=20, grace="60s", lease_ttl="60s")
    queue.wait_for_visits(1)
    wait_until(lambda: queue.states() == {"running": 20})
    idle = spawn(queues={"default": 5}, lease_ttl="60s", poll_interval="60s")
    worker.terminate()
    queue.wait_for_states(succeeded=19, running=1)
    queue.go()
    assert worker.wait() == 0
    queue.wait_for_states(succeeded=20)
    for job_id in others:
        job = queue.job(job_id)
        assert job.attempt == 1
        assert job.fence == 2
        assert queue.history(job_id) == []
    idle.terminate()
    assert idle.wait() == 0


@pytest.mark.covers("T63")
def test_t63_each_further_signal_skips_a_phase(queue, spawn):
    (job_id,) = queue.add(app.deaf, "x")
    worker = spawn(grace="300s", lease_ttl="60s")
    queue.wait_for_visits(1)
    worker.terminate()
    worker.wait_for_line("stopping: SIGTERM")
    worker.interrupt()
    worker.wait_for_line("asking 1 running attempts to end")
    worker.interrupt()
    assert worker.wait(20.0) == 0
    assert queue.job(job_id).state == "running"


@pytest.mark.needs("server")
def test_an_interrupted_job_runs_again_and_its_session_was_rolled_back(queue, spawn):
    """Cancelled by the stop in the middle of its transaction."""
    (job_id,) = queue.add(app.slow_async_sql, "x")
    worker = spawn(grace="100ms")
    queue.wait_for_visits(1)
    worker.terminate()
    assert worker.wait() == 0
    assert queue.history(job_id) == ["interrupted"]
    job = queue.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("ready", 0, 1)
    with Session(queue.look) as session:
        assert session.scalar(text("select count(*) from shop_effect")) == 0


@pytest.mark.needs("server")
@pytest.mark.covers("T63")
def test_t63_a_stop_ends_in_time_with_the_database_away(
    queue, spawn, engine, databases
):
    queue.add(app.nap, "x", seconds=1.0)
    worker = spawn(grace="2s", lease_ttl="60s")
    queue.wait_for_visits(1)
    with away(databases, engine.url.database):
        asked = time.monotonic()
        worker.terminate()
        assert worker.wait(60.0) == 0
        # Grace, then what is left to write, the lease, the lifespan, the threads.
        assert time.monotonic() - asked < 2 + 10 + 5 + 5
    assert "outcomes could not be written" in worker.output


def test_a_stop_is_idempotent_and_a_worker_can_start_again(queue, start):
    worker = start()
    queue.add(app.visit, "a")
    queue.wait_for_states(succeeded=1)
    worker.stop()
    worker.stop()
    assert worker.stats.succeeded == 1
    queue.add(app.visit, "b")
    worker.start()
    worker.start()
    queue.wait_for_states(succeeded=2)


def test_no_thread_is_left_after_a_stop(queue, start):
    worker = start()
    queue.add(app.visit, "a")
    queue.add(app.visit_async, "b")
    queue.wait_for_states(succeeded=2)
    worker.stop()

    def left():
        return [
            t.name for t in threading.enumerate() if t.name.startswith("sqla-jobs-")
        ]

    wait_until(lambda: not left(), what=f"no threads left, not {left()}")


@pytest.mark.needs("server")
def test_a_stopped_worker_gives_back_its_connections(queue, start, engine):
    worker = start()
    queue.add(app.visit, "a")
    queue.wait_for_states(succeeded=1)
    worker.stop()
    query = text(
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and pid <> pg_backend_pid() and query like '%sqla_worker%'"
    )
    with queue.look.connect() as connection:
        wait_until(lambda: connection.scalar(query) == 0)


def test_run_in_another_thread_stops_when_asked(queue, start):
    worker = start()
    worker.stop()
    thread = threading.Thread(target=worker.run)
    thread.start()
    queue.add(app.visit, "a")
    queue.wait_for_states(succeeded=1)
    worker.request_stop()
    thread.join(10.0)
    assert not thread.is_alive()


def test_signals_are_the_applications_again_after_run(queue, spawn):
    """A real Ctrl-C stops a worker that runs in the foreground."""
    worker = spawn()
    os.kill(worker.pid, signal.SIGINT)
    assert worker.wait() == 0
    assert worker.lines[-1] == "ended"
