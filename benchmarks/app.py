"""The measured application: handlers that do nothing, sync and async."""

from __future__ import annotations

import os

import attrs
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from sqla_jobs import NO_TENANT, JobContext, Jobs, JobSession
from sqla_jobs.asyncio import AsyncJobContext, AsyncJobSession

jobs = Jobs()


@attrs.frozen
class Number:
    """Thirty bytes of input."""

    number: int


def _key(given: Number) -> str:
    return str(given.number)


@jobs.job("bench.sync", input=Number, idempotency_key=_key, tenant=NO_TENANT)
def sync_noop(ctx: JobContext, given: Number) -> None:
    """Do nothing on a thread."""


@jobs.job("bench.async", input=Number, idempotency_key=_key, tenant=NO_TENANT)
async def async_noop(ctx: AsyncJobContext, given: Number) -> None:
    """Do nothing on the loop."""


URL = os.environ.get("SQLA_JOBS_DATABASE_URL", "postgresql+psycopg://")
engine = create_engine(URL)
Session = sessionmaker(engine, class_=JobSession)
AsyncSession = async_sessionmaker(create_async_engine(URL), class_=AsyncJobSession)
