"""``drain_async``: the same on the caller's loop, for handlers of both kinds."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker

from sqla_jobs import NO_TENANT, Jobs, job_output
from sqla_jobs.asyncio import AsyncJobContext, AsyncJobSession
from sqla_jobs.exc import RunRefusedError
from sqla_jobs.models import Job
from sqla_jobs.testing import assert_enqueued, drain, drain_async, rolled_back_async
from tests.support.shop import Order, Visit
from tests.testing_kit.shop import (
    Broken,
    Gateway,
    Mail,
    Work,
    break_mail,
    entered,
    fan,
    jobs,
    mail,
    midway,
    use_gateway,
    visit,
)

pytestmark = pytest.mark.each_kind


@asynccontextmanager
async def by_hand(engine):
    """The factory as users write it."""
    async with engine.connect() as connection, connection.begin() as outer:
        yield async_sessionmaker(
            connection,
            class_=AsyncJobSession,
            join_transaction_mode="create_savepoint",
        )
        await outer.rollback()


async def names(factory, column=Visit.name):
    async with factory() as session:
        return sorted(await session.scalars(select(column)))


def test_handlers_of_both_kinds_run_in_the_tests_transaction(async_engine):
    async def test():
        async with by_hand(async_engine) as factory:
            async with factory.begin() as session:
                queued = session.enqueue(mail, Mail(user_id=7))
                session.enqueue(fan, Work("f", 2))
                await session.run_sync(assert_enqueued, mail, user_id=7)
            done = await drain_async(factory, jobs)
            assert (done.succeeded, done.left) == (5, {})
            assert await names(factory) == ["f-0", "f-1", "mailed-7"]
            assert await names(factory, Order.id) == [7]
            async with factory() as session:
                output = await session.run_sync(job_output, mail, queued.id)
                assert output == "to 7"
        async with AsyncJobSession(async_engine) as look:
            assert (await look.scalars(select(Job.id))).all() == []
            assert (await look.scalars(select(Order.id))).all() == []

    asyncio.run(test())


def test_what_an_async_handler_raises_is_raised_after_it_was_settled(async_engine):
    async def test():
        async with rolled_back_async(async_engine) as factory:
            async with factory.begin() as session:
                session.enqueue(break_mail, Mail(user_id=7))
            with pytest.raises(Broken):
                await drain_async(factory, jobs)
            assert await names(factory, Job.state) == ["dead"]
            assert await names(factory, Order.id) == []
            async with factory.begin() as session:
                session.enqueue(break_mail, Mail(user_id=8))
            done = await drain_async(factory, jobs, raise_errors=False)
            assert done.dead == 1

    asyncio.run(test())


def test_a_lost_attempt_cannot_commit_and_leaves_the_connection_usable(async_engine):
    async def test():
        async with rolled_back_async(async_engine) as factory:
            async with factory.begin() as session:
                session.enqueue(midway, Work("lost"))
                session.enqueue(visit, Work("v"))
            done = await drain_async(factory, jobs)
            assert (done.stale, done.succeeded) == (1, 1)
            assert await names(factory) == ["lost-first", "v"]

    asyncio.run(test())


def test_a_cancelled_test_is_cancelled(async_engine):
    mine = Jobs()
    started = asyncio.Event()

    @mine.job("w", input=Work, idempotency_key=lambda i: i.key, tenant=NO_TENANT)
    async def wait(ctx: AsyncJobContext, work: Work) -> None:
        started.set()
        await asyncio.Event().wait()

    async def test():
        async with rolled_back_async(async_engine) as factory:
            async with factory.begin() as session:
                session.enqueue(wait, Work("w"))
            draining = asyncio.create_task(
                drain_async(factory, mine, raise_errors=False)
            )
            await started.wait()
            draining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await draining

    asyncio.run(test())


def test_an_async_lifespan_lives_on_the_callers_loop(async_engine):
    loops = []

    @asynccontextmanager
    async def lifespan():
        loops.append(asyncio.get_running_loop())
        yield {Gateway: Gateway("async")}
        loops.append(asyncio.get_running_loop())

    mine = Jobs(lifespan=lifespan)

    @mine.job("g", input=Work, idempotency_key=lambda i: i.key, tenant=NO_TENANT)
    async def use(ctx: AsyncJobContext, work: Work) -> None:
        assert ctx.resource(Gateway).name == "async"
        loops.append(asyncio.get_running_loop())

    async def test():
        async with rolled_back_async(async_engine) as factory:
            async with factory.begin() as session:
                session.enqueue(use, Work("g"))
            assert (await drain_async(factory, mine)).succeeded == 1
            assert loops == [asyncio.get_running_loop()] * 3

    asyncio.run(test())


def test_a_sync_drain_inside_a_loop_refuses_an_async_lifespan(factory):
    @asynccontextmanager
    async def lifespan():
        yield None

    async def test():
        with pytest.raises(RunRefusedError, match="drain_async"):
            drain(factory, Jobs(lifespan=lifespan))

    asyncio.run(test())


def test_a_sync_lifespan_and_given_resources_serve_both_kinds(async_engine):
    async def test():
        async with rolled_back_async(async_engine) as factory:
            for key, resources, expected in (
                ("a", None, "real"),
                ("b", {Gateway: Gateway("fake")}, "fake"),
            ):
                async with factory.begin() as session:
                    queued = session.enqueue(use_gateway, Work(key))
                await drain_async(factory, jobs, resources=resources)
                async with factory() as session:
                    output = await session.run_sync(job_output, use_gateway, queued.id)
                    assert output == expected
        assert entered.count("open") == 1

    asyncio.run(test())


def test_a_scoped_factory_keeps_the_tests_own_session(async_engine):
    async def test():
        async with rolled_back_async(async_engine) as factory:
            registry = async_scoped_session(factory, scopefunc=lambda: None)
            registry.add(Visit(name="of the test"))
            registry().enqueue(visit, Work("v"))
            own = registry()
            async with factory.begin() as session:
                session.enqueue(mail, Mail(user_id=1))
            assert (await drain_async(registry, jobs)).succeeded == 2
            assert registry() is own
            await registry.rollback()
            assert await names(factory) == ["mailed-1"]
            await registry.remove()

    asyncio.run(test())
