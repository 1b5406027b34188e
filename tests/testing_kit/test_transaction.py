"""``rolled_back``: the application commits as ever, and nothing of it stays."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import NO_TENANT, JobContext, Jobs
from sqla_jobs.exc import DuplicateJobError
from sqla_jobs.models import Job
from sqla_jobs.testing import drain, rolled_back, rolled_back_async
from tests.support.shop import Visit
from tests.testing_kit.shop import Broken, Work, jobs, visit

pytestmark = pytest.mark.each_kind


def visits(factory) -> list[str]:
    with factory() as session:
        return sorted(session.scalars(select(Visit.name)))


def test_commits_and_rollbacks_of_the_application_do_what_they_say(engine):
    with rolled_back(engine) as factory:
        with factory.begin() as session:
            session.add(Visit(name="committed"))
            session.enqueue(visit, Work("committed"))
        with factory() as session:
            session.add(Visit(name="rolled back"))
            session.enqueue(visit, Work("rolled back"))
            session.flush()
            session.rollback()
        with factory() as session:
            assert session.scalars(select(Job.key)).all() == ["committed"]
        assert visits(factory) == ["committed"]
    assert visits(sessionmaker(engine)) == []


def test_nothing_stays_when_the_test_fails(engine):
    with pytest.raises(Broken), rolled_back(engine) as factory:
        with factory.begin() as session:
            session.add(Visit(name="committed"))
        raise Broken
    assert visits(sessionmaker(engine)) == []


def test_sessions_of_other_classes_can_share_the_connection(engine):
    with rolled_back(engine) as factory:
        plain = sessionmaker(
            factory.kw["bind"], join_transaction_mode="create_savepoint"
        )
        with plain.begin() as session:
            session.add(Visit(name="plain"))
        assert visits(factory) == ["plain"]
    with Session(engine) as look:
        assert look.scalars(select(Visit.name)).all() == []


def test_an_async_transaction_is_rolled_back_too(async_engine):
    async def test():
        async with rolled_back_async(async_engine) as factory:
            async with factory.begin() as session:
                session.add(Visit(name="async"))
                session.enqueue(visit, Work("a"))
            async with factory() as session:
                assert (await session.scalars(select(Visit.name))).all() == ["async"]
        async with AsyncSession(async_engine) as look:
            assert (await look.scalars(select(Visit.name))).all() == []
            assert (await look.scalars(select(Job.id))).all() == []

    asyncio.run(test())


def test_a_commit_that_refuses_a_job_leaves_the_transaction_usable(factory):
    with factory.begin() as session:
        session.enqueue(visit, Work("a"))
    with factory() as session:
        session.add(Visit(name="refused"))
        session.enqueue(visit, Work("a"), on_duplicate="error")
        with pytest.raises(DuplicateJobError):
            session.commit()
    with factory.begin() as session:
        session.add(Visit(name="after it"))
    assert visits(factory) == ["after it"]
    assert drain(factory, jobs).succeeded == 1


def test_savepoints_of_a_handler_are_no_commits_of_its_session(factory):
    mine = Jobs()

    @mine.job("n", input=Work, idempotency_key=lambda i: i.key, tenant=NO_TENANT)
    def nested(ctx: JobContext, work: Work) -> None:
        with suppress(Broken), ctx.session.begin_nested():
            ctx.session.add(Visit(name="lost"))
            raise Broken
        with ctx.session.begin_nested():
            ctx.session.add(Visit(name="kept"))
            ctx.session.enqueue(nested, Work("next"), delay="1h")
        ctx.session.add(Visit(name="outer"))

    with factory.begin() as session:
        session.enqueue(nested, Work("n"))
    assert drain(factory, mine).succeeded == 1
    assert visits(factory) == ["kept", "outer"]
    with factory() as session:
        found = {job.key: job.state for job in session.scalars(select(Job))}
        assert found == {"n": "succeeded", "next": "ready"}
