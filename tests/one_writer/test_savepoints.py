"""The first statement of a transaction may be a savepoint, and it stays one."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session as PlainSession

from sqla_jobs import JobSession, enqueue
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.exc import EngineUnsuitableError
from tests.support.enqueuing import Work, keys, nothing_lasts, orders, work
from tests.support.shop import Order
from tests.worker import app


def test_a_released_savepoint_does_not_outlive_the_transaction(engine, second_engine):
    with nothing_lasts(engine, second_engine), JobSession(engine) as session:
        with session.begin_nested():
            session.add(Order(id=1, org_id=1))
            session.enqueue(work, Work("a"))
        assert keys(second_engine) == []
        session.rollback()


def test_a_released_savepoint_without_a_job_does_not_either(engine, second_engine):
    """The rows of a JobSession: nobody can know whether a job comes later."""
    with nothing_lasts(engine, second_engine), JobSession(engine) as session:
        with session.begin_nested():
            session.add(Order(id=1, org_id=1))
        session.enqueue(work, Work("a"))
        session.rollback()


def test_what_is_committed_stays(engine, second_engine):
    with JobSession(engine) as session:
        with session.begin_nested() as outer:
            session.enqueue(work, Work("outer"))
            with session.begin_nested():
                session.add(Order(id=1, org_id=1))
                session.enqueue(work, Work("inner"))
            assert outer.is_active
        with session.begin_nested() as dropped:
            session.enqueue(work, Work("dropped"))
            dropped.rollback()
        session.commit()
    assert keys(second_engine) == ["inner", "outer"]
    assert orders(second_engine) == [1]


def test_savepoints_of_an_async_session_are_no_transactions(
    async_engine, engine, second_engine
):
    async def ask():
        async with AsyncJobSession(async_engine) as session:
            async with session.begin_nested():
                session.add(Order(id=1, org_id=1))
                session.enqueue(work, Work("a"))
            await session.rollback()

    with nothing_lasts(engine, second_engine):
        asyncio.run(ask())


def test_a_session_that_joins_a_connection_by_a_savepoint(engine, second_engine):
    """As test suites do it, around all that a test commits."""
    with nothing_lasts(engine, second_engine), engine.connect() as connection:
        outer = connection.begin()
        with JobSession(
            connection, join_transaction_mode="create_savepoint"
        ) as session:
            session.add(Order(id=1, org_id=1))
            session.commit()
            session.enqueue(work, Work("a"))
            session.commit()
        outer.rollback()


@pytest.mark.parametrize("target", ["session", "connection"])
def test_a_job_that_would_outlive_its_transaction_is_refused(
    engine, second_engine, target
):
    """Nobody knew of it when the savepoint was opened."""
    opened = PlainSession(engine) if target == "session" else engine.connect()
    with opened, opened.begin_nested():
        opened.execute(select(Order.id)).all()
        with pytest.raises(EngineUnsuitableError, match="use a JobSession"):
            enqueue(opened, work, Work("a"))
        opened.rollback()
    assert keys(second_engine) == []


def test_a_plain_session_may_enqueue_before_and_after_its_savepoints(
    engine, second_engine
):
    with PlainSession(engine) as session:
        enqueue(session, work, Work("before"))
        with session.begin_nested():
            session.add(Order(id=1, org_id=1))
            enqueue(session, work, Work("inside"))
        session.rollback()
        assert keys(second_engine) == []
        with session.begin_nested():
            session.execute(select(Order.id)).all()
        enqueue(session, work, Work("after"))
        session.commit()
    assert keys(second_engine) == ["after"]


def test_a_savepoint_of_a_handler_goes_with_its_attempt(queue, start, engine):
    """Also when the worker was given a factory of plain sessions."""
    from sqlalchemy.orm import sessionmaker

    from sqla_jobs import Jobs, Retry

    jobs = Jobs()

    @jobs.job("fails", **app.options(retry=Retry(attempts=1)))
    def fails(ctx, do):
        with ctx.session.begin_nested():
            ctx.session.add(Order(id=1, org_id=1))
        raise ValueError

    start(jobs, session=sessionmaker(engine), async_session=None)
    queue.add(fails, "a")
    queue.wait_for_states(dead=1)
    assert orders(engine) == []


def test_sessions_that_keep_no_jobs_are_left_alone(engine):
    statements = []
    event.listen(
        engine, "before_cursor_execute", lambda c, k, sql, *a: statements.append(sql)
    )
    for _ in range(2):
        with PlainSession(engine) as session:
            with session.begin_nested():
                session.execute(select(Order.id)).all()
            session.commit()
    assert [s for s in statements if s.startswith("BEGIN")] == []
