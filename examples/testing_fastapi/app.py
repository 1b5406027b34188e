"""The application: an order is placed, its receipt is sent, a reminder follows."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated

import attrs
from fastapi import Depends, FastAPI
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_jobs import NO_TENANT, Jobs, Retry, constant
from sqla_jobs.asyncio import AsyncJobContext, AsyncJobSession

URL = os.environ.get("SHOP_DATABASE_URL", "postgresql+psycopg:///shop")
engine = create_async_engine(URL)
Session = async_sessionmaker(engine, class_=AsyncJobSession, expire_on_commit=False)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "example_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    total: Mapped[int]
    receipts: Mapped[int] = mapped_column(default=0)


class Mailer:
    """Sends mails; a fake takes its place in tests."""

    async def send(self, to: str, text: str) -> None:
        raise NotImplementedError


@asynccontextmanager
async def lifespan() -> AsyncIterator[Mapping[type, object]]:
    yield {Mailer: Mailer()}


jobs = Jobs(lifespan=lifespan)


@attrs.frozen
class ForOrder:
    order_id: int


@jobs.job(
    "orders.receipt",
    input=ForOrder,
    idempotency_key=lambda i: f"receipt:{i.order_id}",
    tenant=NO_TENANT,
    retry=Retry(attempts=3, backoff=constant("1m")),
)
async def send_receipt(ctx: AsyncJobContext, job: ForOrder) -> None:
    order = await ctx.session.get_one(Order, job.order_id)
    await ctx.resource(Mailer).send(order.email, f"Thank you: {order.total} EUR")
    order.receipts += 1
    ctx.session.enqueue(remind, job, delay="7d")


@jobs.job(
    "orders.remind",
    input=ForOrder,
    idempotency_key=lambda i: f"remind:{i.order_id}",
    tenant=NO_TENANT,
)
async def remind(ctx: AsyncJobContext, job: ForOrder) -> None:
    order = await ctx.session.get_one(Order, job.order_id)
    await ctx.resource(Mailer).send(order.email, "How do you like it?")


async def get_session() -> AsyncIterator[AsyncJobSession]:
    async with Session.begin() as session:
        yield session


# scope="function": the commit comes before the answer, not after it.
Db = Annotated[AsyncJobSession, Depends(get_session, scope="function")]
app = FastAPI()


@app.post("/orders", status_code=201)
async def place_order(email: str, total: int, db: Db) -> dict[str, int]:
    order = Order(email=email, total=total)
    db.add(order)
    await db.flush()
    db.enqueue(send_receipt, ForOrder(order.id))
    return {"id": order.id}
