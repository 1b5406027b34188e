"""What the kit's tests run: one registry with a job for each thing that can happen."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

import attrs
from sqlalchemy import func, select

from sqla_jobs import (
    NO_TENANT,
    DeadJob,
    Discard,
    JobContext,
    JobFacts,
    Jobs,
    Retry,
    Sensitive,
    Snooze,
    constant,
)
from sqla_jobs.asyncio import AsyncJobContext
from tests.support.shop import Order, Visit

entered: list[str] = []
"""What ``lifespan`` and ``around`` did, in order; each test starts with none."""


class Gateway:
    """A resource."""

    def __init__(self, name: str = "real") -> None:
        self.name = name


@contextmanager
def lifespan() -> Iterator[dict[type, object]]:
    entered.append("open")
    yield {Gateway: Gateway()}
    entered.append("close")


@contextmanager
def around(facts: JobFacts) -> Iterator[None]:
    entered.append(f"before {facts.name}")
    yield
    entered.append(f"after {facts.name}")


jobs = Jobs(lifespan=lifespan, around=around)


@attrs.frozen
class Work:
    key: str
    n: int = 0
    token: Sensitive[str] = ""


class Mail(TypedDict):
    user_id: int


class Broken(Exception):
    """What a broken handler raises."""


def keyed(work: Work) -> str:
    return work.key


@jobs.job(
    "dead.report",
    input=DeadJob,
    idempotency_key=lambda i: f"{i.job_id}",
    tenant=NO_TENANT,
    queue="reports",
)
def report(ctx: JobContext, dead: DeadJob) -> None:
    ctx.session.add(Visit(name=f"reported {dead.name}"))


@jobs.job("visit", input=Work, idempotency_key=keyed, tenant=NO_TENANT)
def visit(ctx: JobContext, work: Work) -> int:
    ctx.session.add(Visit(name=work.key, attempt=ctx.attempt))
    return work.n


@jobs.job("fan", input=Work, idempotency_key=keyed, tenant=lambda i: i.n, queue="fans")
def fan(ctx: JobContext, work: Work) -> None:
    """Enqueue as many visits as ``n`` says."""
    for number in range(work.n):
        ctx.session.enqueue(visit, Work(f"{work.key}-{number}"))


@jobs.job(
    "break",
    input=Work,
    idempotency_key=keyed,
    tenant=NO_TENANT,
    retry=Retry(attempts=2, backoff=constant("1h")),
    on_dead=report,
)
def break_(ctx: JobContext, work: Work) -> None:
    ctx.session.add(Visit(name=work.key))
    ctx.session.enqueue(visit, Work(f"{work.key}-never"))
    ctx.session.flush()
    raise Broken(work.key)


@jobs.job(
    "mend",
    input=Work,
    idempotency_key=keyed,
    tenant=NO_TENANT,
    retry=Retry(attempts=3, backoff=constant("1h")),
)
def mend(ctx: JobContext, work: Work) -> None:
    """Fail as often as ``n`` says."""
    if ctx.attempt <= work.n:
        raise Broken(work.key)
    ctx.session.add(Visit(name=work.key, attempt=ctx.attempt))


@jobs.job("signal", input=Work, idempotency_key=keyed, tenant=NO_TENANT)
def signal(ctx: JobContext, work: Work) -> None:
    if work.key == "exit":
        sys.exit(3)
    if work.key == "snooze" and not ctx.session.scalar(select(func.count(Visit.id))):
        raise Snooze("1h")
    if work.key == "discard":
        raise Discard("no use")
    if work.key == "interrupt":
        raise KeyboardInterrupt


@jobs.job(
    "midway",
    input=Work,
    idempotency_key=keyed,
    tenant=NO_TENANT,
    retry=Retry(attempts=1),
)
def midway(ctx: JobContext, work: Work) -> None:
    """Commit by itself, fail afterwards; or lose the job before the last commit."""
    ctx.session.add(Visit(name=f"{work.key}-first"))
    ctx.session.commit()
    ctx.session.add(Visit(name=f"{work.key}-second"))
    if work.key == "lost":
        # An operator's retry on a running job is refused; its fence is raised by hand.
        from sqla_jobs.models import Job

        job = ctx.session.get_one(Job, ctx.job_id)
        job.fence += 1
        return
    raise Broken(work.key)


@jobs.job("gateway", input=Work, idempotency_key=keyed, tenant=NO_TENANT, timeout="1m")
def use_gateway(ctx: JobContext, work: Work) -> str:
    assert ctx.deadline is not None
    return ctx.resource(Gateway).name


@jobs.job(
    "mail",
    input=Mail,
    idempotency_key=lambda i: f"{i['user_id']}",
    tenant=NO_TENANT,
    queue="mails",
)
async def mail(ctx: AsyncJobContext, input: Mail) -> str:
    await asyncio.sleep(0)
    ctx.session.add(Order(id=input["user_id"], org_id=1))
    ctx.session.enqueue(visit, Work(f"mailed-{input['user_id']}"))
    return f"to {input['user_id']}"


@jobs.job(
    "mail.break",
    input=Mail,
    idempotency_key=lambda i: f"{i['user_id']}",
    tenant=NO_TENANT,
    queue="mails",
    retry=Retry(attempts=1),
)
async def break_mail(ctx: AsyncJobContext, input: Mail) -> None:
    ctx.session.add(Order(id=input["user_id"], org_id=1))
    await ctx.session.flush()
    await asyncio.sleep(0)
    raise Broken("mail")


elsewhere = jobs.declare(
    "elsewhere", input=Work, output=None, idempotency_key=keyed, tenant=NO_TENANT
)
"""Declared here; its handler is bound nowhere."""

other = Jobs()


@other.job("stranger", input=Work, idempotency_key=keyed, tenant=NO_TENANT)
def stranger(ctx: JobContext, work: Work) -> None:
    """Of another registry, in the same queue."""
