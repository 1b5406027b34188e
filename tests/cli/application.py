"""An application as the command line meets one: a registry and session factories."""

from __future__ import annotations

import os

import attrs
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from sqla_jobs import NO_TENANT, JobContext, Jobs, JobSession, Retry, Sensitive
from sqla_jobs.asyncio import AsyncJobContext, AsyncJobSession

URL = os.environ.get("SHOP_URL", "postgresql+psycopg:///nowhere")

LOGGED = 7
"""The order whose handler says something."""

jobs = Jobs()
answer = 42


@attrs.frozen
class Charge:
    order: int
    card: Sensitive[str]


@jobs.job(
    "shop.charge",
    input=Charge,
    idempotency_key=lambda i: f"charge:{i.order}",
    tenant=NO_TENANT,
    queue="billing",
    retry=Retry(attempts=1),
)
def charge(ctx: JobContext, input: Charge) -> str:
    if input.order < 0:
        raise ValueError(f"order {input.order} is not one of ours")
    if input.order == LOGGED:
        ctx.log.info("charging")
    return f"paid {input.order}"


@jobs.job(
    "shop.index",
    input=Charge,
    idempotency_key=lambda i: f"index:{i.order}",
    tenant=NO_TENANT,
)
async def index(ctx: AsyncJobContext, input: Charge) -> str:
    return f"indexed {input.order}"


Session = sessionmaker(create_engine(URL), class_=JobSession)
AsyncSession = async_sessionmaker(create_async_engine(URL), class_=AsyncJobSession)
