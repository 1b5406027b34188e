"""Workers on one file: each job once, soon, and nobody hears that it was locked."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import sessionmaker

from sqla_jobs import Jobs, JobSession
from sqla_jobs.models import Job
from sqla_jobs.worker import lookout
from tests.support.shop import Visit
from tests.support.waiting import wait_until
from tests.worker import app

COUNT = 600
ENQUEUERS = 2


def enqueue_many(name: str, count: int) -> None:
    """Enqueue *count* jobs, ten to a transaction, beside others who do the same."""
    engine = create_engine(os.environ["SQLA_JOBS_DATABASE_URL"])
    sessions = sessionmaker(engine, class_=JobSession)
    for start in range(0, count, 10):
        with sessions.begin() as session:
            for n in range(start, start + 10):
                session.enqueue(app.visit, app.Do(f"{name}:{n}"))


@pytest.mark.covers("C115")
def test_two_processes_run_each_job_once_and_nothing_is_locked(queue, spawn, processes):
    """While two others enqueue; every job writes through its session."""
    workers = [spawn(queues={"default": 8}, lease_ttl="10s") for _ in range(2)]
    each = COUNT // ENQUEUERS
    children = [processes.call(enqueue_many, f"{n}", each) for n in range(ENQUEUERS)]
    for child in children:
        assert child.wait(60) == 0, child.output
    queue.wait_for_states(succeeded=COUNT, timeout=60.0)
    for worker in workers:
        worker.terminate()
        assert worker.wait() == 0
    runs = Counter(queue.visits())
    assert len(runs) == COUNT
    assert set(runs.values()) == {1}
    assert {attempt for _, attempt in runs} == {1}
    said = "\n".join(child.output for child in (*workers, *children))
    assert "locked" not in said
    # Both had their part of it.
    assert all("succeeded=0," not in worker.output for worker in workers)


def test_a_commit_wakes_the_worker_of_its_own_process(queue, start, monkeypatch):
    """At once: neither a poll nor a look at the file is near."""
    monkeypatch.setattr(lookout, "INTERVAL", 60.0)
    worker = start(poll_interval="60s")
    wait_until(worker._parts.listener.healthy)
    wait_until(lambda: worker._parts.claimer._dry)
    (job_id,) = queue.add(app.noop, "x")
    queue.wait_for_states(succeeded=1, timeout=10.0)
    job = queue.job(job_id)
    assert (job.attempted_at - job.created_at).total_seconds() < 1


def test_a_rolled_back_enqueue_wakes_nobody(queue, start, monkeypatch):
    monkeypatch.setattr(lookout, "INTERVAL", 60.0)
    worker = start(poll_interval="60s")
    wait_until(lambda: worker._parts.claimer._dry)
    looks = []
    monkeypatch.setattr(worker._parts.listener, "_look", lambda: looks.append(1))
    with queue.sessions() as session:
        session.enqueue(app.noop, app.Do("x"))
        session.write_jobs()
        session.rollback()
    queue.add(app.noop, "y")
    wait_until(lambda: looks)
    assert looks == [1]
    assert [job.key for job in _jobs(queue)] == ["y"]


def test_a_commit_of_another_process_is_seen_without_a_poll(queue, spawn):
    spawn(poll_interval="60s")
    for n in range(5):
        (job_id,) = queue.add(app.noop, f"{n}")
        queue.wait_for_states(succeeded=n + 1, timeout=10.0)
        job = queue.job(job_id)
        assert (job.attempted_at - job.created_at).total_seconds() < 1


def test_an_idle_worker_does_not_write(queue, start, engine):
    """But for its heartbeat: looks are free, and nobody stands in line for them."""
    start(lease_ttl="60s")
    looking = engine.connect()
    version = "PRAGMA data_version"
    wait_until(lambda: queue.states() == {})
    before = looking.exec_driver_sql(version).scalar()
    until = time.monotonic() + 1.0
    wait_until(lambda: time.monotonic() > until)
    assert looking.exec_driver_sql(version).scalar() == before
    looking.close()


def test_a_handler_behind_a_long_transaction_is_not_failed(
    queue, start, second_engine, make_engine
):
    """Its completing commit waits longer than the driver would."""
    jobs, entered, held = Jobs(), threading.Event(), threading.Event()

    @jobs.job("x", **app.options())
    def x(ctx, do):
        ctx.session.execute(text("select 1"))
        entered.set()
        held.wait(10)

    impatient = make_engine(connect_args={"timeout": 0.2})
    factory = sessionmaker(impatient, class_=JobSession)
    start(jobs, session=factory, async_session=None)
    (job_id,) = queue.add(x, "x")
    assert entered.wait(10)
    with second_engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        held.set()
        enough = time.monotonic() + 1.5
        wait_until(lambda: time.monotonic() > enough)
        other.rollback()
    queue.wait_for_states(succeeded=1)
    assert (queue.job(job_id).attempt, queue.history(job_id)) == (1, [])


@pytest.mark.parametrize("where", ["idle", "inside"])
def test_an_abandoned_attempt_does_not_keep_all_others_from_writing(
    queue, start, where
):
    """Its thread sleeps on, or is inside a statement, with the right to write."""
    jobs, go = Jobs(), threading.Event()
    endless = "with recursive n(x) as (select 1 union all select x from n) "

    @jobs.job("x", **app.options(timeout="1s"))
    def x(ctx, do):
        ctx.session.add(Visit(name=do.name, attempt=ctx.attempt))
        ctx.session.flush()
        if ctx.attempt == 1:
            if where == "inside":
                ctx.session.execute(text(endless + "select count(*) from n"))
            go.wait(60)

    start(jobs, async_session=None)
    (job_id,) = queue.add(x, "x")
    try:
        queue.wait_for_states(succeeded=1)
        assert queue.visits() == [("x", 2)]
        assert queue.history(job_id) == ["timed_out"]
    finally:
        go.set()


def _jobs(queue) -> list[Job]:
    with queue.sessions() as session:
        return list(session.scalars(select(Job)))
