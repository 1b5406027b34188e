"""Bad days that others had: each test is one case, on both databases where it can be."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import create_engine, text, update
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from sqla_jobs import Jobs, JobSession, Retry, Snooze, Worker, cancel_job, clock
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.exc import DatabaseUnavailableError
from sqla_jobs.models import WorkerRow
from sqla_jobs.queue.claim import claim
from sqla_jobs.queue.renew import register_worker
from tests.support.waiting import wait_until
from tests.worker import app


@pytest.mark.covers("C22")
def test_c22_the_lease_is_renewed_until_the_last_job_has_ended(queue, spawn):
    """A job three times as long as the lease outlives SIGTERM, beside an idle worker."""
    (job_id,) = queue.add(app.nap, "x", seconds=6.0)
    first = spawn(lease_ttl="2s", grace="30s")
    queue.wait_for_visits(1)
    other = spawn(lease_ttl="2s")
    first.terminate()
    assert first.wait() == 0
    assert queue.job(job_id).state == "succeeded"
    assert queue.visits() == [("x", 1)]
    assert queue.history(job_id) == []
    other.terminate()
    assert other.wait() == 0
    assert "rescued=0" in other.output


@pytest.mark.covers("C26")
def test_c26_a_stop_right_after_the_start_is_never_lost(queue, start):
    worker = start()
    worker.stop()
    for _ in range(20):
        worker.start()
        worker.stop()
    ender = threading.Thread(target=worker.run)
    # Before the loop turns, or before there is one: the request waits for it.
    worker.request_stop()
    ender.start()
    ender.join(20)
    assert not ender.is_alive()
    assert not [t for t in threading.enumerate() if t.name.startswith("sqla-jobs-cl")]


@pytest.mark.covers("C26")
def test_c26_a_start_that_failed_leaves_nothing_and_can_be_repeated(
    queue, pg_url, databases
):
    from tests.worker.test_shutdown import away

    engine = create_engine(pg_url)
    async_engine = create_async_engine(pg_url)
    worker = Worker(
        app.jobs,
        session=sessionmaker(engine, class_=JobSession),
        async_session=async_sessionmaker(async_engine, class_=AsyncJobSession),
        health_port=0,
    )
    queue.engine.dispose()
    with away(databases, pg_url.database), pytest.raises(DatabaseUnavailableError):
        worker.start()
    assert worker.health_port is None
    assert not [t for t in threading.enumerate() if t.name.startswith("sqla-jobs-")]
    with worker:
        queue.add(app.noop, "x")
        queue.wait_for_states(succeeded=1)
    engine.dispose()
    asyncio.run(async_engine.dispose())


@pytest.mark.covers("C32")
def test_c32_ten_snoozes_burn_no_attempt(queue, start):
    """Also one of no time at all."""
    jobs = Jobs()
    seen = []

    @jobs.job("patient", **app.options(retry=Retry(attempts=2)))
    def patient(ctx, do):
        seen.append(ctx.attempt)
        if len(seen) <= 10:
            raise Snooze("1ms")

    (job_id,) = queue.add(patient, "x")
    worker = start(jobs, async_session=None)
    queue.wait_for_states(succeeded=1)
    assert seen == [1] * 11
    assert queue.job(job_id).attempt == 1
    # Visible in its trace, and no failure.
    assert queue.history(job_id) == ["snoozed"] * 10
    wait_until(lambda: worker.stats.snoozed == 10)
    assert worker.stats.retried == worker.stats.dead == 0


@pytest.mark.covers("C38")
def test_c38_blocked_threads_are_replaced_and_their_late_return_changes_nothing(
    queue, start
):
    jobs = Jobs()
    release = threading.Event()

    @jobs.job("blocked", **app.options(retry=Retry(attempts=1), timeout="1s"))
    def blocked(ctx, do):
        release.wait(60)
        return 1

    @jobs.job("quick", **app.options())
    def quick(ctx, do):
        return 2

    stuck = queue.add(blocked, "a", "b")
    worker = start(jobs, async_session=None, queues={"default": 2}, prefetch=0)
    wait_until(lambda: worker.stats.stuck == 2, 10.0)
    for job_id in stuck:
        assert queue.history(job_id) == ["timed_out"]
    queue.add(quick, *[f"{n}" for n in range(20)])
    queue.wait_for_states(succeeded=20, dead=2)
    before = [vars(queue.job(job_id))["finished_at"] for job_id in stuck]
    release.set()
    wait_until(lambda: worker.stats.stuck == 0)
    assert [queue.job(job_id).state for job_id in stuck] == ["dead", "dead"]
    assert [vars(queue.job(job_id))["finished_at"] for job_id in stuck] == before


@pytest.mark.covers("C39")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_c39_a_timeout_inside_of_error_handling_is_no_success(
    queue, start, pg_url, kind
):
    """In the middle of a statement, below a broad except; connections come back."""
    jobs = Jobs()
    options = app.options(retry=Retry(attempts=1), timeout="200ms")

    @jobs.job("sync", **options)
    def swallows(ctx, do):
        with contextlib.suppress(Exception):
            ctx.session.execute(text("select pg_sleep(30)"))
        return "fine"

    @jobs.job("async", **options)
    async def swallows_async(ctx, do):
        with contextlib.suppress(BaseException):
            await ctx.session.execute(text("select pg_sleep(30)"))
        return "fine"

    @jobs.job("normal", **app.options())
    def normal(ctx, do):
        ctx.session.execute(text("select 1"))

    @jobs.job("normal.async", **app.options())
    async def normal_async(ctx, do):
        await ctx.session.execute(text("select 1"))

    pool = {"pool_size": 2, "max_overflow": 0, "pool_timeout": 20}
    engine, async_engine = (
        create_engine(pg_url, **pool),
        create_async_engine(pg_url, **pool),
    )
    spec = swallows if kind == "sync" else swallows_async
    worker = start(
        jobs,
        session=sessionmaker(engine, class_=JobSession),
        async_session=async_sessionmaker(async_engine, class_=AsyncJobSession),
        queues={"default": 2},
        prefetch=0,
    )
    ids = queue.add(spec, *[f"{n}" for n in range(20)])
    queue.wait_for_states(dead=20)
    assert {tuple(queue.history(i)) for i in ids} == {("timed_out",)}
    queue.add(normal if kind == "sync" else normal_async, *[f"n{n}" for n in range(20)])
    queue.wait_for_states(dead=20, succeeded=20)
    asleep = text(
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and query like '%pg_sleep(30)%' and state = 'active' and pid <> pg_backend_pid()"
    )
    with queue.look.connect() as connection:
        wait_until(lambda: connection.scalar(asleep) == 0, what="no statement left")
    wait_until(lambda: worker.stats.stuck == 0)
    worker.stop()
    engine.dispose()
    asyncio.run(async_engine.dispose())


@pytest.mark.covers("C41")
def test_c41_each_attempt_has_its_own_time_and_the_rest_of_it_is_known(queue, spawn):
    """``timeout=`` bounds one attempt: one that was lost does not count against it."""
    (job_id,) = queue.add(app.slow, "x")
    worker = spawn(lease_ttl="1s")
    queue.wait_for_visits(1)
    first = queue.job(job_id).deadline_at
    worker.kill()
    other = spawn(lease_ttl="1s")
    queue.wait_for_visits(2)
    second = queue.job(job_id).deadline_at
    assert second > first
    wait_until(lambda: "timed_out" in queue.history(job_id), 15.0)
    assert queue.history(job_id)[:2] == ["lost", "timed_out"]
    queue.go()
    queue.wait_for_states(succeeded=1)
    other.terminate()
    assert other.wait() == 0


@pytest.mark.covers("C43")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_c43_a_cancel_reaches_a_running_job_at_once(queue, spawn, kind):
    """Hinted after the commit: nobody waits for the beat, 15 s here."""
    spec = app.hold if kind == "sync" else app.nap_async
    queue.add(spec, "x", seconds=60.0)
    # All rooms are taken: the news come all the same.
    worker = spawn(queues={"default": 1}, lease_ttl="60s")
    worker.wait_for_line("started")
    queue.wait_for_visits(1)
    wait_until(lambda: _hears(queue), 10.0)
    (job_id,) = _running(queue)
    asked = time.monotonic()
    with queue.sessions.begin() as session:
        cancel_job(session, job_id)
    wait_until(lambda: queue.job(job_id).state != "running", 5.0)
    assert time.monotonic() - asked < 5.0
    # What sees the flag and returns has succeeded; what is cancelled is cancelled.
    state = "succeeded" if kind == "sync" else "cancelled"
    assert queue.states() == {state: 1}
    assert queue.visits() == [("x", 1)]


@pytest.mark.covers("C43")
def test_c43_without_notifications_a_cancel_comes_with_the_next_beat(
    queue, start, monkeypatch
):
    monkeypatch.setattr("sqla_jobs.worker.listener.Listener._drain", lambda *_: 0)
    (job_id,) = queue.add(app.nap_async, "x", seconds=60.0)
    start(lease_ttl="4s")
    queue.wait_for_visits(1)
    with queue.sessions.begin() as session:
        cancel_job(session, job_id)
    # One beat, and the second that a handler has to see it by itself.
    wait_until(lambda: queue.job(job_id).state == "cancelled", 1.1 + 1.0 + 1.0)


def _hears(queue):
    from tests.worker.test_connections import hearing

    return hearing(queue) == [True]


def _running(queue):
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    from sqla_jobs.models import Job

    with Session(queue.look) as session:
        return session.scalars(select(Job.id).where(Job.state == "running")).all()


@pytest.mark.covers("C113")
@pytest.mark.each_kind
def test_c113_the_leases_of_a_restored_dump_end_by_their_ttl(queue, start):
    """Its workers are not here; their leases are over, or run for a TTL at most."""
    lost = queue.add(app.visit, "over", "running")
    for ahead in (timedelta(seconds=-30), timedelta(seconds=2)):
        gone = str(uuid4())
        with queue.sessions.begin() as session:
            register_worker(
                session,
                worker_id=gone,
                host="before the dump",
                pid=1,
                version="0",
                queues={},
                ttl=timedelta(seconds=60),
            )
            assert len(claim(session, gone, {"default": 1})) == 1
            session.execute(
                update(WorkerRow)
                .where(WorkerRow.id == UUID(gone))
                .values(lease_until=clock.shifted(ahead))
            )
    start(lease_ttl="2s")
    queue.wait_for_states(succeeded=2)
    assert [queue.history(job_id) for job_id in lost] == [["lost"], ["lost"]]
