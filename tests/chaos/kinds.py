"""The jobs of the chaos: each kind fails, or succeeds, in its own way.

What a kind does through ``ctx.session`` leaves one ``final`` effect per success, and its
declaration says in which states it may end. Attempts are many, because every kill costs
one; only jobs that are to die have few.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import attrs
from sqlalchemy import update

from sqla_jobs import (
    NO_TENANT,
    Discard,
    JobContext,
    JobFacts,
    Jobs,
    JobSpec,
    Retry,
    RetryLater,
    Snooze,
    constant,
)
from sqla_jobs.asyncio import AsyncJobContext
from tests.chaos.faults import die, reach
from tests.chaos.tables import ACCOUNTS, Account, Effect

jobs = Jobs()

PATIENT = Retry(attempts=1000, backoff=constant("100ms"))
BRIEF = Retry(attempts=3, backoff=constant("100ms"))
POISON_ATTEMPTS = 2
QUEUES = {"default": 8, "slow": 3}


@attrs.frozen
class Work:
    """The input of every kind."""

    key: str
    deaths: int = 0
    """How often ``chaos.killer`` takes its process along."""


def job(name: str, **options: Any) -> Any:
    """Declare one kind."""
    given: dict[str, Any] = {"retry": PATIENT, "queue": "default"} | options
    return jobs.job(
        f"chaos.{name}",
        input=Work,
        idempotency_key=lambda work: work.key,
        tenant=NO_TENANT,
        **given,
    )


def effect(ctx: JobFacts, part: str = "final") -> Effect:
    """Return the row that tells what this attempt did."""
    claim: Any = ctx._claim
    return Effect(
        job_id=ctx.job_id,
        name=ctx.name,
        part=part,
        attempt=ctx.attempt,
        fence=claim.fence,
    )


def moment(longest: float = 0.04) -> float:
    """Return how long a handler takes."""
    return random.uniform(0.0, longest)


# --- one effect in the completing transaction ------------------------------------------


@job("entry")
def entry(ctx: JobContext, work: Work) -> None:
    ctx.session.add(effect(ctx))
    ctx.session.flush()
    reach("handler", "inside")
    time.sleep(moment())


@job("entry_async")
async def entry_async(ctx: AsyncJobContext, work: Work) -> None:
    ctx.session.add(effect(ctx))
    await ctx.session.flush()
    reach("handler", "inside")
    await asyncio.sleep(moment())


def _pay(work: Work) -> Any:
    number = sum(work.key.encode()) % ACCOUNTS
    return (
        update(Account)
        .where(Account.id == number)
        .values(balance=Account.balance + 1)
        .execution_options(synchronize_session=False)
    )


@job("transfer")
def transfer(ctx: JobContext, work: Work) -> None:
    """Hold a row that the next attempt at this job needs as well."""
    ctx.session.execute(_pay(work))
    ctx.session.add(effect(ctx))
    reach("handler", "inside")
    time.sleep(moment(0.01))


@job("transfer_async")
async def transfer_async(ctx: AsyncJobContext, work: Work) -> None:
    await ctx.session.execute(_pay(work))
    ctx.session.add(effect(ctx))
    reach("handler", "inside")
    await asyncio.sleep(moment(0.01))


@job("midway")
def midway(ctx: JobContext, work: Work) -> None:
    """Commit in the middle: fenced, and done again by a retry."""
    ctx.session.add(effect(ctx, "early"))
    ctx.session.commit()
    reach("handler", "inside")
    time.sleep(moment())
    ctx.session.add(effect(ctx))


@job("midway_async")
async def midway_async(ctx: AsyncJobContext, work: Work) -> None:
    ctx.session.add(effect(ctx, "early"))
    await ctx.session.commit()
    reach("handler", "inside")
    await asyncio.sleep(moment())
    ctx.session.add(effect(ctx))


@job("parent")
def parent(ctx: JobContext, work: Work) -> None:
    """Enqueue another job in the completing transaction."""
    ctx.session.add(effect(ctx))
    ctx.session.enqueue(child, Work(f"child:{work.key}"))
    time.sleep(moment())


@job("child")
def child(ctx: JobContext, work: Work) -> None:
    ctx.session.add(effect(ctx))


@job("slow", queue="slow")
def slow(ctx: JobContext, work: Work) -> None:
    """Take longer than the time between two blows; stop when asked to."""
    ctx.session.add(effect(ctx))
    ctx.session.flush()
    until = time.monotonic() + random.uniform(0.3, 2.5)
    while time.monotonic() < until:
        ctx.raise_if_cancelled()
        time.sleep(0.02)


# --- failing attempts whose effects are rolled back --------------------------------------


@job("flaky")
def flaky(ctx: JobContext, work: Work) -> None:
    ctx.session.add(effect(ctx))
    ctx.session.flush()
    if random.random() < 0.5:
        raise ConnectionError(work.key)
    if random.random() < 0.2:
        raise RetryLater("50ms")


@job("overtime", timeout="400ms", queue="slow")
def overtime(ctx: JobContext, work: Work) -> None:
    """Go on past the timeout now and then, with rows held."""
    ctx.session.execute(_pay(work))
    ctx.session.add(effect(ctx))
    ctx.session.flush()
    if random.random() < 0.4:
        time.sleep(1.0)


@job("overtime_async", timeout="400ms", queue="slow")
async def overtime_async(ctx: AsyncJobContext, work: Work) -> None:
    ctx.session.add(effect(ctx))
    await ctx.session.flush()
    if random.random() < 0.4:
        await asyncio.sleep(1.0)


@job("snoozer")
def snoozer(ctx: JobContext, work: Work) -> None:
    ctx.session.add(effect(ctx))
    ctx.session.flush()
    if random.random() < 0.6:
        raise Snooze("100ms")


@job("killer")
def killer(ctx: JobContext, work: Work) -> None:
    """Take the process along, a few times."""
    ctx.session.add(effect(ctx))
    ctx.session.flush()
    if ctx.attempt <= work.deaths:
        die()


# --- no session, settled by the engine ---------------------------------------------------


@job("plain")
def plain(ctx: JobContext, work: Work) -> str:
    time.sleep(moment())
    return work.key


@job("plain_async")
async def plain_async(ctx: AsyncJobContext, work: Work) -> str:
    await asyncio.sleep(moment())
    return work.key


# --- what is to die ------------------------------------------------------------------------


@job("doomed", retry=BRIEF)
def doomed(ctx: JobContext, work: Work) -> None:
    ctx.session.add(effect(ctx))
    ctx.session.flush()
    raise ValueError(work.key)


@job("refused", retry=PATIENT)
def refused(ctx: JobContext, work: Work) -> None:
    ctx.session.add(effect(ctx))
    ctx.session.flush()
    raise Discard("not for us")


@job("poison", retry=Retry(attempts=POISON_ATTEMPTS, backoff=constant("100ms")))
def poison(ctx: JobContext, work: Work) -> None:
    """Take the process along, always."""
    ctx.session.add(effect(ctx))
    ctx.session.flush()
    die()


WEIGHTS: dict[JobSpec[Work, Any], float] = {
    entry: 5,
    entry_async: 5,
    transfer: 3,
    transfer_async: 3,
    midway: 2,
    midway_async: 2,
    parent: 2,
    slow: 0.6,
    flaky: 2,
    overtime: 0.4,
    overtime_async: 0.4,
    snoozer: 1,
    killer: 0.08,
    plain: 3,
    plain_async: 3,
    doomed: 0.4,
    refused: 0.4,
    poison: 0.04,
}
"""How often producers enqueue each kind; ``child`` comes from ``parent`` alone."""

DEADLY = frozenset({killer.name, poison.name})
"""Not enqueued again, and not retried by an operator: enough processes die."""
DOOMED = frozenset({doomed.name, refused.name, poison.name})
"""End dead; all others may not."""
WITHOUT_SESSION = frozenset({plain.name, plain_async.name})
PAYING = frozenset({transfer.name, transfer_async.name, overtime.name})
EVERY = frozenset(jobs.specs)
