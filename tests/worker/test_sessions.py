"""``ctx.session``: one clean session per attempt, completed with the job or not at all."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import event, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sqla_jobs import JobContext, Jobs, JobSession, Retry, Worker, clock, constant
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.exc import LeaseLostError, WorkerConfigError
from sqla_jobs.models import Job
from tests.support.shop import Effect, Order, Visit
from tests.support.waiting import wait_until
from tests.worker import app

pytestmark = pytest.mark.each_kind


@pytest.fixture
def jobs():
    return Jobs()


def visits(queue):
    return [name for name, _ in queue.visits()]


@pytest.mark.covers("C11")
@pytest.mark.parametrize("concurrency", [1, 2])
def test_c11_no_state_of_a_session_reaches_the_next_attempt(
    queue, start, jobs, engine, concurrency
):
    """A swallows a failed flush; B sees current data and commits its own changes only."""
    with queue.sessions.begin() as session:
        session.add(Order(id=1, org_id=1, note="before"))
    seen = []
    a_failed, b_may_go = threading.Event(), threading.Event()

    @jobs.job("a", **app.options(retry=Retry(attempts=1)))
    def a(ctx, do):
        order = ctx.session.get_one(Order, 1)
        seen.append(order.note)
        ctx.session.add(Order(id=2, org_id=1, note="before"))
        with pytest.raises(IntegrityError):
            ctx.session.flush()
        a_failed.set()
        if concurrency == 2:
            assert b_may_go.wait(10)

    @jobs.job("b", **app.options())
    def b(ctx, do):
        assert a_failed.wait(10)
        with Session(engine) as other, other.begin():
            other.get_one(Order, 1).note = "after"
        order = ctx.session.get_one(Order, 1)
        seen.append(order.note)
        ctx.session.add(Visit(name="b"))
        b_may_go.set()

    queue.add(a, "a", priority=0)
    queue.add(b, "b")
    start(jobs, async_session=None, queues={"default": concurrency})
    queue.wait_for_states(dead=1, succeeded=1)
    assert seen == ["before", "after"]
    assert visits(queue) == ["b"]
    with Session(engine) as session:
        assert session.scalars(select(Order.id)).all() == [1]


def test_every_session_is_closed_and_its_connection_given_back(
    queue, start, jobs, make_engine
):
    @jobs.job("fine", **app.options())
    def fine(ctx, do):
        ctx.session.execute(text("select 1"))

    @jobs.job("fails", **app.options(retry=Retry(attempts=1)))
    def fails(ctx, do):
        ctx.session.execute(text("select 1"))
        raise ValueError

    own = make_engine(pool_size=2, max_overflow=0)
    queue.add(fine, *[f"{n}" for n in range(10)])
    queue.add(fails, *[f"f{n}" for n in range(10)])
    factory = sessionmaker(own, class_=JobSession)
    start(jobs, session=factory, async_session=None, queues={"default": 2})
    queue.wait_for_states(dead=10, succeeded=10)
    wait_until(lambda: own.pool.checkedout() == 0)


@pytest.mark.parametrize("factory", ["plain", "scoped", "callable"])
def test_any_factory_of_sessions_will_do(queue, start, jobs, engine, factory):
    """With a scoped_session, ctx.session is the registry's, and is removed after."""
    maker = sessionmaker(engine)
    scoped = scoped_session(maker)
    factories = {"plain": maker, "scoped": scoped, "callable": lambda: Session(engine)}
    given = factories[factory]
    sessions = []

    @jobs.job("x", **app.options())
    def x(ctx: JobContext, do):
        ctx.session.add(Effect(name=do.name))
        if factory == "scoped":
            assert scoped() is ctx.session
        sessions.append(ctx.session)

    queue.add(x, "1", "2", "3")
    start(jobs, session=given, async_session=None, queues={"default": 1})
    queue.wait_for_states(succeeded=3)
    assert len(set(map(id, sessions))) == 3
    with Session(engine) as session:
        assert len(session.scalars(select(Effect.name)).all()) == 3


def test_around_is_entered_while_the_completion_commits(queue, start, engine):
    """As Flask's application context removes its session when it ends."""
    scoped = scoped_session(sessionmaker(engine))

    @contextmanager
    def around(facts):
        try:
            yield
        finally:
            scoped.remove()

    jobs = Jobs(around=around)

    @jobs.job("x", **app.options())
    def x(ctx, do):
        scoped().add(Effect(name=do.name))
        assert scoped() is ctx.session

    queue.add(x, "1")
    start(jobs, session=scoped, async_session=None)
    queue.wait_for_states(succeeded=1)
    with Session(engine) as session:
        assert session.scalars(select(Effect.name)).all() == ["1"]


def test_a_session_that_only_was_looked_at_completes_the_job(queue, start, jobs):
    @jobs.job("x", **app.options())
    def x(ctx, do) -> int:
        assert ctx.session is not None
        return 5

    @jobs.job("y", **app.options())
    def y(ctx, do) -> int:
        ctx.session.add(Visit(name="y"))
        ctx.session.commit()
        return 5

    queue.add(x, "x")
    queue.add(y, "y")
    worker = start(jobs, async_session=None)
    queue.wait_for_states(succeeded=2)
    assert visits(queue) == ["y"]
    wait_until(lambda: worker.stats.succeeded == 2)


@pytest.mark.needs("skip_locked")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_deadlock_in_the_completing_commit_runs_again_uncounted(
    queue, start, jobs, kind
):
    """The commit fails with 40001 or 40P01, as it does when another went on instead."""
    failures = []

    def refuse(session):
        if not failures:
            failures.append(1)
            session.execute(
                text("do $$ begin raise exception 'no' using errcode = '40P01'; end $$")
            )

    if kind == "sync":

        @jobs.job("x", **app.options(retry=Retry(attempts=1)))
        def x(ctx, do):
            event.listen(ctx.session, "before_commit", refuse)
            ctx.session.add(Effect(name="x", attempt=ctx.attempt))
    else:

        @jobs.job("x", **app.options(retry=Retry(attempts=1)))
        async def x(ctx, do):
            event.listen(ctx.session.sync_session, "before_commit", refuse)
            ctx.session.add(Effect(name="x", attempt=ctx.attempt))

    (job_id,) = queue.add(x, "x")
    start(jobs)
    queue.wait_for_states(succeeded=1)
    assert queue.history(job_id) == ["interrupted"]
    with Session(queue.look) as session:
        assert session.scalars(select(Effect.attempt)).all() == [1]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_commit_of_an_attempt_that_lost_its_job_is_refused(
    queue, start, jobs, engine, kind
):
    """In the middle of the handler, and nothing of it stays."""
    raised = []

    def steal(job_id):
        with engine.begin() as connection:
            connection.execute(
                update(Job).values(
                    fence=Job.fence + 1,
                    state="ready",
                    run_at=clock.shifted(timedelta(hours=1)),
                    worker_id=None,
                )
            )

    if kind == "sync":

        @jobs.job("x", **app.options())
        def x(ctx, do):
            ctx.session.add(Effect(name="x"))
            steal(ctx.job_id)
            try:
                ctx.session.commit()
            except LeaseLostError as error:
                raised.append(error)
                raise
    else:

        @jobs.job("x", **app.options())
        async def x(ctx, do):
            ctx.session.add(Effect(name="x"))
            steal(ctx.job_id)
            try:
                await ctx.session.commit()
            except LeaseLostError as error:
                raised.append(error)
                raise

    queue.add(x, "x")
    worker = start(jobs)
    wait_until(lambda: worker.stats.stale == 1)
    assert len(raised) == 1
    assert queue.states() == {"ready": 1}
    with Session(queue.look) as session:
        assert session.scalars(select(Effect.name)).all() == []


@pytest.mark.needs("server")
@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_whose_answer_is_lost_counts_if_it_arrived(
    queue, start, jobs, make_engine, arrives
):
    """The connection breaks at the COMMIT: the fence tells what became of it."""
    own = make_engine()
    broken, armed = [], []
    do_commit = own.dialect.do_commit

    def commit(dbapi_connection):
        # The engine's own connections share the dialect: only the handler's breaks.
        if not broken and armed == [threading.get_ident()]:
            broken.append(1)
            if arrives:
                do_commit(dbapi_connection)
            with socket.socket(fileno=os.dup(dbapi_connection.fileno())) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
        do_commit(dbapi_connection)

    own.dialect.do_commit = commit

    @jobs.job("x", **app.options())
    def x(ctx, do):
        ctx.session.add(Visit(name="x", attempt=ctx.attempt))
        ctx.session.flush()
        armed.append(threading.get_ident())

    (job_id,) = queue.add(x, "x")
    factory = sessionmaker(own, class_=JobSession)
    worker = start(jobs, session=factory, async_session=None)
    queue.wait_for_states(succeeded=1)
    wait_until(lambda: worker.stats.succeeded == 1)
    assert broken
    assert worker.stats.stale == 0
    if arrives:
        assert queue.visits() == [("x", 1)]
        assert queue.history(job_id) == []
    else:
        assert queue.visits() == [("x", 2)]
        assert queue.history(job_id) == ["failed"]


@pytest.mark.needs("server")
@pytest.mark.covers("C108")
@pytest.mark.parametrize("concurrency", [1, 3])
def test_c108_a_pool_of_one_serves_handlers_and_starves_nothing(
    queue, start, jobs, make_engine, concurrency, caplog
):
    """Handlers hold the only connection; heartbeat, settle and LISTEN have their own."""
    own = make_engine(pool_size=1, max_overflow=0, pool_timeout=5)

    @jobs.job("x", **app.options(retry=Retry(attempts=5, backoff=constant("10ms"))))
    def x(ctx, do):
        ctx.session.add(Visit(name=do.name, attempt=ctx.attempt))
        ctx.session.flush()
        ctx.session.execute(text("select pg_sleep(2)"))

    queue.add(x, "1", "2", "3")
    worker = start(
        jobs,
        session=sessionmaker(own, class_=JobSession),
        async_session=None,
        queues={"default": concurrency},
        lease_ttl="1s",
    )
    queue.wait_for_states(succeeded=3, timeout=40.0)
    assert sorted(visits(queue)) == ["1", "2", "3"]
    assert worker.stats.stale == 0
    warned = "the application's pool holds 1 connections, but 3 attempts" in caplog.text
    assert warned == (concurrency == 3)


def test_a_factory_in_autocommit_is_refused_at_start(start, make_engine):
    engine = make_engine(isolation_level="AUTOCOMMIT")
    with pytest.raises(WorkerConfigError, match=r"of session= are in AUTOCOMMIT"):
        start(session=sessionmaker(engine, class_=JobSession))


def test_an_async_factory_in_autocommit_is_refused_at_start(start, pg_url):
    engine = create_async_engine(pg_url, isolation_level="AUTOCOMMIT")
    factory = async_sessionmaker(engine, class_=AsyncJobSession)
    with pytest.raises(WorkerConfigError, match=r"of async_session= are in AUTOCOMMIT"):
        start(async_session=factory)
    asyncio.run(engine.dispose())


def test_a_handler_whose_kind_has_no_factory_is_refused(queue):
    with pytest.raises(WorkerConfigError, match="async_session"):
        Worker(app.jobs, session=queue.sessions)
    with pytest.raises(WorkerConfigError, match="session factory"):
        Worker(app.jobs)
    # Served by another worker: no handler of this queue is async.
    Worker(app.jobs, session=queue.sessions, queues={"billing": 1})
