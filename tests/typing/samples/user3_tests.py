"""User 3: tests in a transaction that is rolled back; pyright strict."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type
from uuid import UUID

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker
from user1_fastapi import (
    ChargeOrder,
    IndexDoc,
    Receipt,
    charge_order,
    index_doc,
)
from user2_flask import Mail, welcome

from sqla_jobs import JobSession, JobSpec, cancel_job, find_job, job_output
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.models import Job

assert_type(charge_order, JobSpec[ChargeOrder, Receipt])
assert_type(index_doc, JobSpec[IndexDoc, None])
assert_type(charge_order.name, str)
assert_type(charge_order.input_type, type[ChargeOrder])
assert_type(charge_order.idempotency_key(ChargeOrder(1, 42, "")), str)


@pytest.fixture
def factory(engine: Engine) -> Iterator[sessionmaker[JobSession]]:
    with engine.connect() as connection, connection.begin() as outer:
        yield sessionmaker(
            connection,
            class_=JobSession,
            join_transaction_mode="create_savepoint",
        )
        outer.rollback()


@pytest.fixture
async def afactory(
    aengine: AsyncEngine,
) -> AsyncIterator[async_sessionmaker[AsyncJobSession]]:
    async with aengine.connect() as connection, connection.begin() as outer:
        yield async_sessionmaker(
            connection,
            class_=AsyncJobSession,
            join_transaction_mode="create_savepoint",
        )
        await outer.rollback()


def test_signup_enqueues_a_mail(factory: sessionmaker[JobSession]) -> None:
    with factory.begin() as session:
        queued = session.enqueue(welcome, Mail(user_id=1), delay="1h")
        assert_type(queued.id, UUID)
    with factory() as session:
        job = find_job(session, welcome, Mail(user_id=1))
        assert_type(job, Job | None)
        assert_type(job_output(session, charge_order, queued.id), Receipt | None)
        cancel_job(session, queued.id, reason="signed off")


async def test_charge(afactory: async_sessionmaker[AsyncJobSession]) -> None:
    async with afactory.begin() as session:
        queued = session.enqueue(charge_order, ChargeOrder(1, 42, "tok"))
        await session.write_jobs()
        assert queued.outcome == "created"
        found = await session.run_sync(find_job, charge_order, ChargeOrder(1, 42, ""))
        assert_type(found, Job | None)
