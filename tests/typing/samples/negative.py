"""Every line marked E must be an error in both checkers, and no other line."""

from typing import Any

from sqlalchemy.orm import sessionmaker
from user1_fastapi import ChargeOrder, IndexDoc, charge_order, index_doc, jobs
from user2_flask import Cleanup, count_mails, count_users

from sqla_jobs import (
    NO_TENANT,
    JobContext,
    Jobs,
    JobSession,
    Retry,
    Worker,
    enqueue,
    find_job,
)
from sqla_jobs.asyncio import AsyncJobContext, AsyncJobSession
from sqla_jobs.testing import Clock, assert_enqueued, drain, drain_async, run_job


def enqueues(s: JobSession) -> None:
    s.enqueue(charge_order, IndexDoc(doc_id=1))  # E
    s.enqueue_many(index_doc, [ChargeOrder(1, 2, "")])  # E
    s.enqueue(charge_order, ChargeOrder(1, 2, ""), on_duplicate="raise")  # E
    s.enqueue(charge_order, ChargeOrder(1, 2, ""), delay=5)  # E
    enqueue(s, charge_order, IndexDoc(doc_id=1))  # E
    enqueue(s, count_users, ChargeOrder(1, 2, ""))  # E
    find_job(s, charge_order, IndexDoc(doc_id=1))  # E


async def enqueues_async(s: AsyncJobSession) -> None:
    s.enqueue(charge_order, IndexDoc(doc_id=1))  # E
    await s.enqueue(index_doc, IndexDoc(doc_id=1))  # E: not awaited
    s.write_jobs()  # E: awaited
    await s.run_sync(find_job, charge_order, IndexDoc(doc_id=1))  # E


@jobs.job(
    "x",
    input=IndexDoc,
    idempotency_key=lambda i: i.doc_id,  # E: the key is not a str
    tenant=NO_TENANT,
)
def a(ctx: JobContext, input: IndexDoc) -> None: ...


@jobs.job("x", input=IndexDoc, idempotency_key=lambda i: "k")  # E: tenant missing
def b(ctx: JobContext, input: IndexDoc) -> None: ...


@jobs.job("x", input=IndexDoc, tenant=NO_TENANT)  # E: key missing
def c(ctx: JobContext, input: IndexDoc) -> None: ...


@jobs.job("x", input=IndexDoc, idempotency_key=lambda i: "k", tenant=NO_TENANT)
async def d(ctx: JobContext, input: IndexDoc) -> None: ...


def g(s: JobSession) -> None:
    s.enqueue(d, IndexDoc(doc_id=1))  # E: d is no JobSpec


@jobs.job("x", input=IndexDoc, idempotency_key=lambda i: "k", tenant=NO_TENANT)  # E
def e(ctx: AsyncJobContext, input: IndexDoc) -> None: ...


@jobs.job("x", input=IndexDoc, idempotency_key=lambda i: "k", tenant=NO_TENANT)  # E
def f(ctx: JobContext, input: ChargeOrder) -> None: ...


@jobs.job("x", input=IndexDoc, idempotency_key=lambda i: "k", tenant=NO_TENANT)
async def h(ctx: AsyncJobContext, input: IndexDoc) -> None:
    ctx.session.get(IndexDoc, 1)  # E: not awaited
    await ctx.session.enqueue(index_doc, input)  # E: awaited


@count_users.handler  # E: async def with JobContext
async def i(ctx: JobContext, input: Cleanup) -> int:
    return 1


@count_users.handler  # E: returns another type
def j(ctx: JobContext, input: Cleanup) -> str:
    return "1"


@count_mails.handler  # E: takes another input
def k(ctx: JobContext, input: Cleanup) -> int:
    return 1


def others(s: Any) -> None:
    jobs.declare("x", input=Cleanup, output=int, tenant=NO_TENANT)  # E: key missing
    Retry(3)  # E: keyword only
    Retry(retry_on="ValueError")  # E
    Jobs(around=open)  # E
    Worker(jobs, session=lambda: 1)  # E


async def kit(
    s: JobSession, a: AsyncJobSession, factory: sessionmaker[JobSession]
) -> None:
    run_job(s, charge_order, IndexDoc(doc_id=1))  # E
    run_job(a, charge_order, ChargeOrder(1, 2, ""))  # E: an async session
    assert_enqueued(a, charge_order)  # E: through run_sync
    assert_enqueued(s, "billing.charge_order")  # E: the job, not its name
    await drain_async(factory, jobs)  # E: sessions of the wrong kind
    drain(factory, jobs, queues="default")  # E: a set
    Clock().advance(60)  # E: of what unit?
