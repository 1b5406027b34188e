"""A small application whose worker runs beside a test, or in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from functools import cache
from typing import Any

import attrs
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import NO_TENANT, DeadJob, Jobs, JobSession, Retry, Worker, constant
from sqla_jobs.asyncio import AsyncJobSession
from tests.support.shop import Effect, Order, Visit

QUICK = Retry(attempts=3, backoff=constant("50ms"))


@attrs.frozen
class Do:
    """What a job is asked to do: its name is its key."""

    name: str
    seconds: float = 0.0


def options(**more: Any) -> Any:
    """Return the options that all jobs here share."""
    return {
        "input": Do,
        "idempotency_key": lambda do: do.name,
        "tenant": NO_TENANT,
        "retry": QUICK,
        **more,
    }


jobs = Jobs()


@cache
def side() -> Engine:
    """Return an engine beside the worker's: what is done through it commits at once."""
    return create_engine(
        os.environ["SQLA_JOBS_DATABASE_URL"],
        isolation_level="AUTOCOMMIT",
        pool_pre_ping=True,  # Servers are restarted under it.
    )


def note(do: Do, attempt: int) -> None:
    """Leave a visit that is committed at once, whatever becomes of the attempt."""
    with Session(side()) as session:
        session.add(Visit(name=do.name, attempt=attempt))
        session.flush()


def wait_for_go(ctx: Any, name: str = "go") -> None:
    """Wait until the test lets the job go on, by an order of that note."""
    query = select(func.count()).where(Order.note == name)
    with side().connect() as connection:
        while not connection.scalar(query):
            if ctx is not None and ctx.cancelled:
                return
            time.sleep(0.01)


@jobs.job("visit", **options())
def visit(ctx, do):
    ctx.session.add(Visit(name=do.name, attempt=ctx.attempt))


@jobs.job("visit.async", **options())
async def visit_async(ctx, do):
    ctx.session.add(Visit(name=do.name, attempt=ctx.attempt))


@jobs.job("effect", **options())
def effect(ctx, do):
    """A business write, then a wait in the open transaction."""
    ctx.session.add(Effect(name=do.name, attempt=ctx.attempt))
    ctx.session.flush()
    note(do, ctx.attempt)
    wait_for_go(ctx)


@jobs.job("hold", **options())
def hold(ctx, do):
    note(do, ctx.attempt)
    wait_for_go(ctx)


@jobs.job("hold.long", **options(retry=Retry(attempts=3, backoff=constant("1h"))))
def hold_long(ctx, do):
    note(do, ctx.attempt)
    wait_for_go(ctx)


@jobs.job("deaf", **options())
def deaf(ctx, do):
    """Never looks whether it was asked to end."""
    note(do, ctx.attempt)
    wait_for_go(None)


@jobs.job("noop", **options())
def noop(ctx, do):
    return None


@jobs.job("fail", **options())
def fail(ctx, do):
    note(do, ctx.attempt)
    raise ValueError(do.name)


@jobs.job("fail.once", **options(retry=Retry(attempts=1)))
def fail_once(ctx, do):
    note(do, ctx.attempt)
    raise ValueError(do.name)


@jobs.job("die", **options())
def die(ctx, do):
    note(do, ctx.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.job("die.once", **options(retry=Retry(attempts=1)))
def die_once(ctx, do):
    note(do, ctx.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.job("spin", **options())
def spin(ctx, do):
    """Keep the interpreter busy, without a system call that lets others run."""
    note(do, ctx.attempt)
    until = time.monotonic() + do.seconds
    while time.monotonic() < until:
        sum(range(1000))


@jobs.job("nap", **options())
def nap(ctx, do):
    note(do, ctx.attempt)
    time.sleep(do.seconds)


@jobs.job("block", **options())
async def block(ctx, do):
    """Block the event loop."""
    note(do, ctx.attempt)
    time.sleep(do.seconds)  # noqa: ASYNC251 - on purpose


@jobs.job("nap.async", **options())
async def nap_async(ctx, do):
    note(do, ctx.attempt)
    await asyncio.sleep(do.seconds)


@jobs.job("slow", **options(timeout="1s"))
def slow(ctx, do):
    """Run into the timeout, in Python."""
    note(do, ctx.attempt)
    wait_for_go(None)


@jobs.job("slow.sql", **options(timeout="1s"))
def slow_sql(ctx, do):
    """Run into the timeout inside a statement, with a row locked."""
    note(do, ctx.attempt)
    ctx.session.add(Effect(name=do.name, attempt=ctx.attempt))
    ctx.session.flush()
    if ctx.attempt < 3:
        ctx.session.execute(text("select pg_sleep(60)"))


@jobs.job("slow.async", **options(timeout="1s"))
async def slow_async(ctx, do):
    note(do, ctx.attempt)
    await asyncio.sleep(60)


@jobs.job("slow.async.sql", **options(timeout="1s"))
async def slow_async_sql(ctx, do):
    note(do, ctx.attempt)
    ctx.session.add(Effect(name=do.name, attempt=ctx.attempt))
    await ctx.session.flush()
    if ctx.attempt < 3:
        await ctx.session.execute(text("select pg_sleep(60)"))


@jobs.job(
    "report", input=DeadJob, idempotency_key=lambda d: str(d.job_id), tenant=NO_TENANT
)
def report(ctx, dead):
    ctx.session.add(Visit(name=f"{dead.name}: {dead.error[:500]}"))


@jobs.job("mourned", **options(retry=Retry(attempts=1), on_dead=report))
def mourned(ctx, do):
    raise ValueError("the reason")


@jobs.job("billing", **options(queue="billing"))
def billing(ctx, do):
    note(do, ctx.attempt)
    wait_for_go(ctx)


def async_url(url: str) -> str:
    """Return *url* for an async driver; psycopg is both."""
    return url.replace("sqlite://", "sqlite+aiosqlite://")


def run_worker(given: dict[str, Any]) -> None:
    """Run a worker until a signal comes; the body of a process."""
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(relativeCreated)d %(message)s"
    )
    url = os.environ["SQLA_JOBS_DATABASE_URL"]
    worker = Worker(
        jobs,
        session=sessionmaker(create_engine(url), class_=JobSession),
        async_session=async_sessionmaker(
            create_async_engine(async_url(url)), class_=AsyncJobSession
        ),
        **given,
    )
    worker.run()
    print("ended", flush=True)
