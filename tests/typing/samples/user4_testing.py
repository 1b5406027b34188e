"""User 4: tests of jobs with the testing kit, in a transaction that is rolled back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime, timedelta
from typing import assert_type

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker
from user1_fastapi import ChargeOrder, Gateway, Receipt, charge_order, index_doc
from user1_fastapi import jobs as shop_jobs
from user2_flask import Cleanup, Mail, cleanup, count_users, jobs, welcome

from sqla_jobs import JobSession
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.models import Job
from sqla_jobs.testing import (
    Clock,
    Drained,
    assert_enqueued,
    drain,
    drain_async,
    refute_enqueued,
    rolled_back,
    rolled_back_async,
    run_job,
    run_job_async,
)


@pytest.fixture
def factory(engine: Engine) -> Iterator[sessionmaker[JobSession]]:
    with rolled_back(engine) as factory:
        yield factory


@pytest.fixture
async def afactory(
    aengine: AsyncEngine,
) -> AsyncIterator[async_sessionmaker[AsyncJobSession]]:
    async with rolled_back_async(aengine) as factory:
        yield factory


def test_signup_enqueues_a_mail(
    factory: sessionmaker[JobSession], sqla_jobs_clock: Clock
) -> None:
    with factory.begin() as session:
        session.enqueue(welcome, Mail(user_id=1), delay="1h")
    with factory() as session:
        assert_type(assert_enqueued(session, welcome, user_id=1), Job)
        refute_enqueued(session, index_doc)
    sqla_jobs_clock.advance("1h")
    sqla_jobs_clock.advance(timedelta(seconds=1))
    assert_type(sqla_jobs_clock.now, datetime)
    done = drain(factory, jobs, queues={"default"}, limit=10, raise_errors=False)
    assert_type(done, Drained)
    assert_type(done.left, Mapping[str, str])
    assert done.succeeded == 1


async def test_charge(afactory: async_sessionmaker[AsyncJobSession]) -> None:
    async with afactory.begin() as session:
        session.enqueue(charge_order, ChargeOrder(1, 42, "tok"))
        found = await session.run_sync(assert_enqueued, charge_order, order_id=42)
        assert_type(found, Job)
    done = await drain_async(afactory, shop_jobs, resources={Gateway: Gateway()})
    assert done.dead == 0


async def test_body_only(afactory: async_sessionmaker[AsyncJobSession]) -> None:
    async with afactory.begin() as session:
        fakes = {Gateway: Gateway()}
        order = ChargeOrder(1, 42, "tok")
        receipt = await run_job_async(session, charge_order, order, resources=fakes)
        assert_type(receipt, Receipt)


def test_sync_body_only(factory: sessionmaker[JobSession], day: Cleanup) -> None:
    with factory() as session:
        assert_type(run_job(session, count_users, day), int)
        run_job(session, cleanup, day)
