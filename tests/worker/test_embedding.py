"""A worker inside an application: context managers, lifespans, other loops."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from contextlib import asynccontextmanager, contextmanager

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from sqla_jobs import Jobs, Worker, clock
from sqla_jobs.asyncio import AsyncJobContext, AsyncJobSession
from sqla_jobs.models import WorkerRow
from tests.support.shop import Visit
from tests.worker import app

pytestmark = pytest.mark.each_kind


class Gateway:
    def __init__(self):
        self.thread = threading.get_ident()
        self.closed = False


def declare(jobs, seen):
    @jobs.job("sync", **app.options())
    def sync(ctx, do):
        seen.append(ctx.resource(Gateway))

    @jobs.job("async", **app.options())
    async def async_(ctx: AsyncJobContext, do):
        seen.append(ctx.resource(Gateway))
        seen.append(asyncio.get_running_loop())

    return sync, async_


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_lifespan_gives_resources_once_and_takes_them_back(queue, start, kind):
    made, seen, loops = [], [], []

    @contextmanager
    def lifespan():
        made.append(Gateway())
        yield {Gateway: made[-1]}
        made[-1].closed = True

    @asynccontextmanager
    async def lifespan_async():
        loops.append(asyncio.get_running_loop())
        made.append(Gateway())
        yield {Gateway: made[-1]}
        made[-1].closed = asyncio.get_running_loop() is loops[0]

    jobs = Jobs(lifespan=lifespan if kind == "sync" else lifespan_async)
    sync, async_ = declare(jobs, seen)
    queue.add(sync, "1", "2")
    queue.add(async_, "3", "4")
    worker = start(jobs)
    queue.wait_for_states(succeeded=4)
    assert len(made) == 1
    assert [s for s in seen if isinstance(s, Gateway)] == made * 4
    if kind == "async":
        assert loops[0] in seen
    assert not made[0].closed
    worker.stop()
    assert made[0].closed


def test_a_lifespan_that_fails_starts_nothing(queue, start):
    @contextmanager
    def lifespan():
        raise OSError("no gateway")
        yield

    before = {t.name for t in threading.enumerate()}
    with pytest.raises(OSError, match="no gateway"):
        start(Jobs(lifespan=lifespan), async_session=None)
    assert {t.name for t in threading.enumerate()} <= before
    with queue.look.connect() as connection:
        alive = select(func.count()).where(WorkerRow.lease_until > clock.now())
        assert connection.scalar(alive) == 0


def test_embedded_in_a_loop_handlers_share_it_with_their_application(queue, pg_url):
    """One async engine serves both, and the loop is never blocked."""
    loops, ticks = [], []
    jobs = Jobs()

    @jobs.job("x", **app.options())
    async def x(ctx: AsyncJobContext, do):
        loops.append(asyncio.get_running_loop())
        ctx.session.add(Visit(name=do.name))

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def main():
        engine = create_async_engine(pg_url, pool_size=2)
        factory = async_sessionmaker(engine, class_=AsyncJobSession)
        ticking = asyncio.create_task(tick())
        async with Worker(jobs, async_session=factory, grace="1s"):
            for number in range(20):
                async with factory.begin() as session:
                    session.enqueue(x, app.Do(f"{number}"))
            await asyncio.to_thread(queue.wait_for_visits, 20)
        ticking.cancel()
        await engine.dispose()
        return asyncio.get_running_loop()

    loop = asyncio.run(main())
    assert set(loops) == {loop}
    assert max(b - a for a, b in itertools.pairwise(ticks)) < 0.5
    queue.wait_for_states(succeeded=20)


def test_leaving_an_embedded_worker_waits_for_its_handlers(queue, pg_url):
    jobs = Jobs()
    entered = threading.Event()

    @jobs.job("x", **app.options())
    async def x(ctx, do):
        entered.set()
        await asyncio.sleep(0.5)

    queue.add(x, "1")

    async def main():
        engine = create_async_engine(pg_url)
        factory = async_sessionmaker(engine, class_=AsyncJobSession)
        async with Worker(jobs, async_session=factory, grace="5s"):
            await asyncio.to_thread(entered.wait, 10)
        await engine.dispose()

    asyncio.run(main())
    assert queue.states() == {"succeeded": 1}


def test_a_cancelled_application_still_stops_its_worker(queue, pg_url):
    jobs = Jobs()
    entered = threading.Event()

    @jobs.job("x", **app.options())
    async def x(ctx, do):
        entered.set()
        await asyncio.sleep(600)

    (job_id,) = queue.add(x, "1")

    async def serve(factory):
        async with Worker(jobs, async_session=factory, grace="300s"):
            await asyncio.sleep(600)

    async def main():
        engine = create_async_engine(pg_url)
        factory = async_sessionmaker(engine, class_=AsyncJobSession)
        serving = asyncio.create_task(serve(factory))
        await asyncio.to_thread(entered.wait, 10)
        serving.cancel()
        await asyncio.sleep(0.2)
        serving.cancel()  # impatient: skips the grace
        with pytest.raises(asyncio.CancelledError):
            await serving
        await engine.dispose()

    asyncio.run(main())
    assert queue.history(job_id) == ["interrupted"]
