"""``run_job``: one handler's body, with the test's session."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from sqla_jobs import NO_TENANT, JobContext, Jobs
from sqla_jobs.asyncio import AsyncJobContext
from sqla_jobs.exc import (
    IdempotencyKeyRequiredError,
    PayloadError,
    ResourceMissingError,
    RunRefusedError,
)
from sqla_jobs.models import Job
from sqla_jobs.testing import rolled_back_async, run_job, run_job_async
from tests.support.shop import Order, Visit
from tests.testing_kit.shop import (
    Broken,
    Gateway,
    Mail,
    Work,
    break_,
    elsewhere,
    entered,
    mail,
    use_gateway,
    visit,
)

pytestmark = pytest.mark.each_kind


def test_the_body_runs_with_the_given_session_and_nothing_else(factory):
    with factory() as session:
        assert run_job(session, visit, Work("a", 7)) == 7
        assert session.scalars(select(Visit.name)).all() == ["a"]
        assert session.scalar(select(func.count(Job.id))) == 0
        session.rollback()
        assert session.scalars(select(Visit.name)).all() == []
    assert entered == []


def test_what_it_raises_is_raised_as_it_is(factory):
    with factory() as session, pytest.raises(Broken):
        run_job(session, break_, Work("b"))


def test_resources_are_what_the_test_gives(factory):
    with factory() as session:
        fake = {Gateway: Gateway("fake")}
        assert run_job(session, use_gateway, Work("g"), resources=fake) == "fake"
        with pytest.raises(ResourceMissingError):
            run_job(session, use_gateway, Work("g"))


def test_the_context_tells_what_a_claim_would(factory, sqla_jobs_clock):
    jobs, seen = Jobs(), []

    @jobs.job(
        "facts",
        input=Work,
        idempotency_key=lambda i: i.key,
        tenant=lambda i: i.n,
        queue="q",
        timeout="5m",
    )
    def facts(ctx: JobContext, work: Work) -> None:
        seen.extend([ctx.name, ctx.tenant, ctx.queue, ctx.attempt, ctx.deadline])

    with factory() as session:
        run_job(session, facts, Work("f", 3))
    deadline = sqla_jobs_clock.now + timedelta(minutes=5)
    assert seen == ["facts", "3", "q", 1, deadline]


def test_input_and_output_must_be_storable(factory):
    jobs = Jobs()

    @jobs.job("out", input=Work, idempotency_key=lambda i: i.key, tenant=NO_TENANT)
    def out(ctx: JobContext, work: Work) -> int:
        return "no number"  # type: ignore[return-value]  # on purpose

    with factory() as session:
        with pytest.raises(PayloadError, match="output"):
            run_job(session, out, Work("a"))
        with pytest.raises(PayloadError, match=r"input\.n"):
            run_job(session, out, Work("a", "no number"))
        with pytest.raises(IdempotencyKeyRequiredError):
            run_job(session, out, Work(""))


def test_the_handler_must_be_there_and_of_the_right_kind(factory):
    with factory() as session:
        with pytest.raises(RunRefusedError, match="run_job_async"):
            run_job(session, mail, Mail(user_id=1))
        with pytest.raises(RunRefusedError, match="has no handler"):
            run_job(session, elsewhere, Work("e"))


def test_both_kinds_run_on_a_loop(async_engine):
    jobs = Jobs()

    @jobs.job(
        "late",
        input=Work,
        idempotency_key=lambda i: i.key,
        tenant=NO_TENANT,
        timeout="1m",
    )
    async def late(ctx: AsyncJobContext, work: Work) -> None:
        assert ctx.deadline is not None
        assert ctx.resource(Gateway).name == "fake"

    async def test():
        async with rolled_back_async(async_engine) as factory, factory() as session:
            assert await run_job_async(session, mail, Mail(user_id=7)) == "to 7"
            assert await run_job_async(session, visit, Work("v", 3)) == 3
            assert (await session.scalars(select(Order.id))).all() == [7]
            assert (await session.scalars(select(Visit.name))).all() == ["v"]
            fake = {Gateway: Gateway("fake")}
            await run_job_async(session, late, Work("l"), resources=fake)

    asyncio.run(test())
