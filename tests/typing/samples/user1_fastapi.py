"""User 1: FastAPI and async SQLAlchemy on PostgreSQL, coming from Celery and Redis."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import date
from typing import Annotated
from uuid import UUID

import attrs
from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_jobs import (
    NO_TENANT,
    DeadJob,
    Discard,
    Jobs,
    Retry,
    RetryLater,
    Sensitive,
    Worker,
    cancel_job,
    exponential,
    find_job,
    job_output,
)
from sqla_jobs.asyncio import AsyncJobContext, AsyncJobSession
from sqla_jobs.models import Attempt, Job


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    org_id: Mapped[int]
    charge_no: Mapped[str | None]


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)


class HttpError(Exception):
    status: int
    retry_after: float


@attrs.frozen
class Charge:
    no: str


class Gateway:
    async def charge(self, order_id: int, key: str) -> Charge:
        raise NotImplementedError

    async def aclose(self) -> None: ...


# --- db.py ----------------------------------------------------------------------------
engine = create_async_engine("postgresql+psycopg://")
Session = async_sessionmaker(engine, class_=AsyncJobSession, expire_on_commit=False)


async def get_session() -> AsyncIterator[AsyncJobSession]:
    async with Session.begin() as session:
        session.info["enqueued_by"] = "user:42"  # the default of enqueue(enqueued_by=)
        yield session


# scope: the commit comes BEFORE the response is sent.
Db = Annotated[AsyncJobSession, Depends(get_session, scope="function")]


# --- jobs.py --------------------------------------------------------------------------
@asynccontextmanager
async def lifespan() -> AsyncGenerator[Mapping[type, object]]:
    gateway = Gateway()
    yield {Gateway: gateway}
    await gateway.aclose()


jobs = Jobs(lifespan=lifespan)


@attrs.frozen
class ChargeOrder:
    org_id: int
    order_id: int
    card_token: Sensitive[str]


@attrs.frozen
class Receipt:
    no: str


def permanent(error: Exception) -> bool:
    return (
        isinstance(error, HttpError)
        and 400 <= error.status < 500
        and error.status != 429
    )


@jobs.job(
    "reports.dead",
    input=DeadJob,
    idempotency_key=lambda i: str(i.job_id),
    tenant=NO_TENANT,
)
async def report_dead(ctx: AsyncJobContext, input: DeadJob) -> None:
    ctx.log.error("%s died of %s", input.name, input.error)


@jobs.job(
    "billing.charge_order",
    input=ChargeOrder,
    idempotency_key=lambda i: f"charge:{i.order_id}",
    tenant=lambda i: i.org_id,
    queue="billing",
    retry=Retry(
        attempts=8,
        backoff=exponential("2s", cap="10m", jitter=0.2),
        dead_on=permanent,
    ),
    timeout="30s",
    on_dead=report_dead,
)
async def charge_order(ctx: AsyncJobContext, input: ChargeOrder) -> Receipt:
    order = await ctx.session.get_one(Order, input.order_id)
    if order.charge_no is not None:
        raise Discard("charged already")
    gateway = ctx.resource(Gateway)
    try:
        charge = await gateway.charge(order.id, str(ctx.job_id))
    except HttpError as error:
        if error.status == 429:
            raise RetryLater(f"{error.retry_after}s") from error
        raise
    order.charge_no = charge.no
    return Receipt(charge.no)


class IndexDoc(BaseModel):
    doc_id: int


@jobs.job(
    "search.index",
    input=IndexDoc,
    idempotency_key=lambda i: f"index:{i.doc_id}",
    tenant=NO_TENANT,
    on_duplicate="rerun",
)
async def index_doc(ctx: AsyncJobContext, input: IndexDoc) -> None: ...


@attrs.frozen
class DailyReport:
    customer_id: int
    day: date


@jobs.job(
    "reports.daily",
    input=DailyReport,
    idempotency_key=lambda i: f"{i.customer_id}:{i.day}",
    tenant=lambda i: i.customer_id,
)
async def daily_report(ctx: AsyncJobContext, input: DailyReport) -> None: ...


@jobs.job(
    "reports.fan_out",
    input=date,
    idempotency_key=lambda day: f"{day}",
    tenant=NO_TENANT,
)
async def fan_out(ctx: AsyncJobContext, day: date) -> None:
    customers = await ctx.session.scalars(select(Customer.id))
    reports = (DailyReport(customer, day) for customer in customers)
    ctx.session.enqueue_many(daily_report, reports)


# --- web.py ---------------------------------------------------------------------------
@asynccontextmanager
async def dev_worker(app: FastAPI) -> AsyncGenerator[None]:
    async with Worker(jobs, async_session=Session, queues={"default": 4, "billing": 2}):
        yield


app = FastAPI(lifespan=dev_worker)


class Queued(BaseModel):
    job_id: UUID
    existed: bool


@app.post("/orders/{order_id}/charge", status_code=202)
async def post_charge(order_id: int, db: Db) -> Queued:
    order = Order(id=order_id, org_id=1)
    db.add(order)
    job = db.enqueue(charge_order, ChargeOrder(1, order_id, "tok"), delay="5m")
    await db.write_jobs()
    return Queued(job_id=job.id, existed=job.outcome == "kept")


@app.post("/docs/{doc_id}")
async def save_doc(doc_id: int, db: Db) -> None:
    # A debounce: at most one waiting, and one more after a running one.
    db.enqueue(index_doc, IndexDoc(doc_id=doc_id), delay="5s")
    db.enqueue_many(index_doc, [IndexDoc(doc_id=i) for i in range(100)])


@app.get("/jobs/{job_id}")
async def result(job_id: UUID, db: Db) -> dict[str, str | None]:
    receipt = await db.run_sync(job_output, charge_order, job_id)
    return {"no": receipt.no if receipt else None}


@app.delete("/orders/{order_id}/charge")
async def cancel(order_id: int, db: Db) -> None:
    job = await db.run_sync(find_job, charge_order, ChargeOrder(1, order_id, ""))
    if job is None:
        raise HTTPException(404)
    await db.run_sync(cancel_job, job.id, reason="customer left")


async def why(db: AsyncJobSession) -> None:
    dead = (
        select(Job, Attempt.error)
        .join(Job.attempts)
        .where(Job.name == charge_order.name, Job.state == "dead")
    )
    for job, error in await db.execute(dead):
        print(job.key, error)
