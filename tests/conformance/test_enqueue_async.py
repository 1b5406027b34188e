"""Enqueue through asyncio, on both drivers: psycopg and asyncpg."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from sqla_jobs import enqueue, enqueue_many, write_jobs
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.exc import DuplicateJobError, NotWrittenError
from sqla_jobs.models import Job
from tests.support.enqueuing import Work, keys, nothing_lasts, orders, work
from tests.support.failing import FAILURES
from tests.support.rows import add_job
from tests.support.shop import Order
from tests.support.waiting import wait_for_lock

pytestmark = [pytest.mark.conformance, pytest.mark.needs("server")]


class Undo(Exception):
    pass


@pytest.fixture(params=["psycopg", "asyncpg"])
def driver_url(request, pg_url):
    return pg_url.set(drivername=f"postgresql+{request.param}")


@pytest.fixture
def run(driver_url):
    """Run a coroutine function with a pool of one connection on a loop of its own."""

    def run(main, **options):
        async def outer():
            engine = create_async_engine(
                driver_url, pool_size=1, max_overflow=0, **options
            )
            try:
                return await main(engine)
            finally:
                await engine.dispose()

        return asyncio.run(outer())

    return run


async def next_borrower_commits(engine):
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 1"))
        await connection.commit()


@pytest.mark.covers("C05")
def test_an_async_session_commits_its_jobs_with_its_rows(run, second_engine):
    """enqueue is not awaited; handles are plain values, readable after the end."""

    async def main(engine):
        async with async_sessionmaker(engine, class_=AsyncJobSession)() as session:
            session.add(Order(id=1, org_id=1))
            handle = session.enqueue(work, Work("a"))
            session.enqueue_many(work, [Work("b"), Work("c")])
            assert keys(second_engine) == []
            await session.commit()
        return handle

    handle = run(main)
    assert (handle.key, handle.outcome, handle.state) == ("a", "created", "ready")
    assert keys(second_engine) == ["a", "b", "c"]
    assert orders(second_engine) == [1]


@pytest.mark.covers("C05")
def test_a_handle_can_be_read_outside_of_any_await(run):
    read = []

    async def main(engine):
        async with async_sessionmaker(engine, class_=AsyncJobSession)() as session:
            handle = session.enqueue(work, Work("a"))
            await session.commit()
            thread = threading.Thread(target=lambda: read.append(handle.id))
            thread.start()
            await asyncio.to_thread(thread.join)
            return handle.id

    assert [run(main)] == read


def test_an_async_session_that_does_nothing_else_commits_its_jobs(run, second_engine):
    async def main(engine):
        async with AsyncJobSession(engine) as session, session.begin():
            session.enqueue(work, Work("a"))

    run(main)
    assert keys(second_engine) == ["a"]


def test_an_async_session_writes_early_and_queries(run):
    async def main(engine):
        async with AsyncJobSession(engine) as session:
            first = session.enqueue(work, Work("a"))
            await session.write_jobs()
            assert first.outcome == "created"
            session.enqueue(work, Work("b"))
            found = await session.scalars(select(Job.key).order_by(Job.key))
            assert found.all() == ["a", "b"]
            await session.rollback()
            with pytest.raises(NotWrittenError):
                _ = first.outcome

    run(main)


def test_async_savepoints(run, second_engine):
    async def main(engine):
        async with AsyncJobSession(engine) as session:
            session.enqueue(work, Work("0"))
            async with session.begin_nested():
                session.enqueue(work, Work("1"))
            with pytest.raises(Undo):
                async with session.begin_nested():
                    session.enqueue(work, Work("2"))
                    raise Undo
            await session.commit()

    run(main)
    assert keys(second_engine) == ["0", "1"]


def test_the_function_takes_a_plain_async_session_and_an_async_connection(
    run, second_engine
):
    async def main(engine):
        async with AsyncSession(engine) as session:
            enqueue(session, work, Work("a"))
            await session.run_sync(write_jobs)
            await session.commit()
        async with engine.begin() as connection:
            enqueue_many(connection, work, [Work("b")])
        async with engine.connect() as connection:
            enqueue(connection, work, Work("lost"))
            await connection.rollback()

    run(main)
    assert keys(second_engine) == ["a", "b"]


def test_an_async_session_joined_to_a_connection(run, second_engine):
    async def main(engine):
        async with engine.connect() as connection:
            outer = await connection.begin()
            async with AsyncJobSession(
                connection, join_transaction_mode="create_savepoint"
            ) as session:
                session.enqueue(work, Work("a"))
                await session.commit()
            await outer.rollback()
            async with connection.begin(), AsyncJobSession(connection) as session:
                session.enqueue(work, Work("b"))
                await session.commit()

    run(main)
    assert keys(second_engine) == ["b"]


# --- the guard -------------------------------------------------------------------------


async def session_commit(engine, failure):
    async with AsyncJobSession(engine) as session:
        await session.run_sync(failure.ask)
        await session.commit()


async def session_begin(engine, failure):
    async with AsyncJobSession(engine) as session, session.begin():
        await session.run_sync(failure.ask)


async def close_without_rollback(engine, failure):
    session = AsyncJobSession(engine)
    await session.run_sync(failure.ask)
    try:
        await session.commit()
    finally:
        await session.close()


async def connection_begin(engine, failure):
    async with engine.begin() as connection:
        await connection.run_sync(failure.ask)


WAYS = [session_commit, session_begin, close_without_rollback, connection_begin]


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_async_commit_that_fails_leaves_nothing(
    run, second_engine, engine, name, way
):
    failure = FAILURES[name](second_engine)

    async def main(async_engine):
        with pytest.raises(failure.error):
            await way(async_engine, failure)
        await next_borrower_commits(async_engine)

    with failure.prepared(), nothing_lasts(engine, second_engine):
        run(main)


def test_a_swallowed_failure_at_an_async_savepoint_fails_the_commit(
    run, second_engine, engine
):
    failure = FAILURES["timed-out"](second_engine)

    async def main(async_engine):
        session = AsyncJobSession(async_engine)
        await session.run_sync(failure.ask)
        with pytest.raises(DBAPIError):
            async with session.begin_nested():
                await session.execute(text("SELECT 1"))
        with pytest.raises((DBAPIError, PendingRollbackError)):
            await session.commit()
        await session.close()
        await next_borrower_commits(async_engine)

    with failure.prepared(), nothing_lasts(engine, second_engine):
        run(main)


@pytest.mark.parametrize("times", [1, 3], ids=["once", "again"])
@pytest.mark.parametrize("kind", ["session", "begin", "connection"])
def test_a_task_cancelled_in_its_commit_leaves_nothing(
    run, second_engine, engine, kind, times
):
    """While the INSERT waits for a key that another transaction holds."""

    async def work_in(async_engine):
        if kind == "connection":
            async with async_engine.begin() as connection:
                await connection.execute(insert(Order).values(id=1, org_id=1))
                enqueue_many(connection, work, [Work("a"), Work("held")])
        elif kind == "begin":
            async with AsyncJobSession(async_engine) as session, session.begin():
                session.add(Order(id=1, org_id=1))
                session.enqueue_many(work, [Work("a"), Work("held")])
        else:
            async with AsyncJobSession(async_engine) as session:
                session.add(Order(id=1, org_id=1))
                session.enqueue_many(work, [Work("a"), Work("held")])
                await session.commit()

    async def main(async_engine):
        task = asyncio.create_task(work_in(async_engine))
        await asyncio.to_thread(wait_for_lock, second_engine)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await next_borrower_commits(async_engine)

    with second_engine.connect() as holder:
        add_job(holder, name=work.name, key="held", tenant=work.tenant_of(Work("held")))
        with nothing_lasts(engine, second_engine):
            run(main)
        holder.rollback()


def test_a_refused_async_write_leaves_the_transaction_usable(run, second_engine):
    failure = FAILURES["refused"](second_engine)

    async def main(async_engine):
        async with AsyncJobSession(async_engine) as session:
            await session.run_sync(failure.ask)
            with pytest.raises(DuplicateJobError):
                await session.write_jobs()
            session.enqueue(work, Work("after"))
            await session.commit()

    with failure.prepared():
        run(main)
    assert keys(second_engine) == ["after", "healthy", "poison"]
