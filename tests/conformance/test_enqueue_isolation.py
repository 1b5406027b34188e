"""Stricter isolation, two-phase commit, and several engines in one session."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from sqlalchemy import create_engine, select, text, update
from sqlalchemy.exc import DBAPIError, InvalidRequestError, UnboundExecutionError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session as PlainSession

from sqla_jobs import JobSession, enqueue, models
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.exc import EnqueueRoutingError, NotWrittenError
from tests.support.enqueuing import Work, keys, nothing_lasts, orders, stored, work
from tests.support.shop import Base, Order

pytestmark = [pytest.mark.conformance, pytest.mark.needs("server")]

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
STRICT = LEVELS[1:]


def sqlstate(error):
    return error.orig.sqlstate


@pytest.fixture(params=LEVELS)
def leveled(request, make_engine):
    return make_engine(isolation_level=request.param, pool_size=1, max_overflow=0)


@pytest.fixture(params=STRICT)
def strict(request, make_engine):
    return make_engine(isolation_level=request.param, pool_size=1, max_overflow=0)


@pytest.mark.covers("T29")
def test_enqueue_works_in_every_isolation_level(leveled, second_engine):
    with JobSession(leveled) as session:
        session.add(Order(id=1, org_id=1))
        session.enqueue(work, Work("a"))
        with contextlib.suppress(ZeroDivisionError), session.begin_nested():
            session.enqueue(work, Work("lost"))
            raise ZeroDivisionError
        with session.begin_nested():
            session.enqueue(work, Work("b"))
        session.commit()
        session.enqueue(work, Work("rolled back"))
        session.rollback()
    assert keys(second_engine) == ["a", "b"]


@pytest.mark.covers("T29")
@pytest.mark.parametrize("mode", ["keep", "replace", "rerun"])
def test_a_duplicate_that_can_be_seen_is_met_in_every_isolation_level(
    leveled, second_engine, mode
):
    with JobSession(second_engine) as session, session.begin():
        existing = session.enqueue(work, Work("a", 1))
    with JobSession(leveled) as session:
        handle = session.enqueue(work, Work("a", 2), on_duplicate=mode)
        session.commit()
    assert handle.id == existing.id
    assert stored(second_engine, "a").input["n"] == (1 if mode == "keep" else 2)


@pytest.mark.covers("T29")
@pytest.mark.parametrize("mode", ["keep", "replace", "rerun", "error"])
def test_a_duplicate_that_cannot_be_seen_is_a_serialization_failure(
    strict, second_engine, mode
):
    """Passed on as it is: callers retry the transaction, and meet it then."""
    with nothing_lasts(strict, second_engine):
        with PlainSession(second_engine) as session, session.begin():
            enqueue(session, work, Work("b"))
        before = keys(second_engine)
        session = JobSession(strict)
        session.scalars(select(Order)).all()  # takes the snapshot
        with PlainSession(second_engine) as elsewhere, elsewhere.begin():
            enqueue(elsewhere, work, Work("a", 1))
        session.add(Order(id=1, org_id=1))
        handle = session.enqueue(work, Work("a", 2), on_duplicate=mode)
        with pytest.raises(DBAPIError) as caught:
            session.commit()
        assert sqlstate(caught.value) == "40001"
        session.close()
        with pytest.raises(NotWrittenError):
            _ = handle.outcome
        assert keys(second_engine) == ["a", *before]
        with second_engine.begin() as connection:
            connection.execute(text("DELETE FROM sqla_job_body"))
            connection.execute(text("DELETE FROM sqla_job"))


@pytest.mark.covers("T29")
def test_a_commit_that_the_server_refuses_unwrites_its_handles(
    make_engine, second_engine
):
    """A write skew is found at the COMMIT itself, after our last statement."""
    engine = make_engine(isolation_level="SERIALIZABLE")
    with PlainSession(second_engine) as session, session.begin():
        session.add_all([Order(id=1, org_id=1), Order(id=2, org_id=1)])
    one, two = JobSession(engine), JobSession(engine)
    for session, mine, its in ((one, 1, 2), (two, 2, 1)):
        session.get_one(Order, its)
        session.execute(update(Order).where(Order.id == mine).values(org_id=2))
    handle = two.enqueue(work, Work("a"))
    two.write_jobs()
    assert handle.outcome == "created"
    one.commit()
    with pytest.raises(DBAPIError) as caught:
        two.commit()
    assert sqlstate(caught.value) == "40001"
    with pytest.raises(NotWrittenError):
        _ = handle.outcome
    two.rollback()
    again = two.enqueue(work, Work("a"))
    two.commit()
    assert again.outcome == "created"
    one.close()
    two.close()
    assert keys(second_engine) == ["a"]


# --- two-phase -------------------------------------------------------------------------


@pytest.fixture
def two_phase(second_engine):
    with second_engine.connect() as connection:
        if connection.scalar(text("SHOW max_prepared_transactions")) == "0":
            pytest.skip("max_prepared_transactions is 0 on this server")


@pytest.mark.needs("two_phase")
def test_a_two_phase_session_prepares_its_jobs_with_its_rows(
    two_phase, engine, second_engine
):
    with JobSession(engine, twophase=True) as session:
        session.add(Order(id=1, org_id=1))
        handle = session.enqueue(work, Work("a"))
        session.prepare()
        assert handle.outcome == "created"
        assert keys(second_engine) == []
        session.commit()
        session.enqueue(work, Work("b"))
        session.commit()
        session.enqueue(work, Work("lost"))
        session.rollback()
    assert keys(second_engine) == ["a", "b"]
    assert orders(second_engine) == [1]


@pytest.mark.needs("two_phase")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_prepared_connection_commits_or_rolls_back_its_jobs(
    two_phase, engine, second_engine, end
):
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        handle = enqueue(connection, work, Work("a"))
        transaction.prepare()
        assert handle.outcome == "created"
        getattr(transaction, end)()
        if end == "rollback":
            with pytest.raises(NotWrittenError):
                _ = handle.outcome
    assert keys(second_engine) == (["a"] if end == "commit" else [])


@pytest.mark.needs("two_phase")
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_nothing_is_enqueued_between_prepare_and_commit(two_phase, pg_url, driver):
    """The transaction is closed by then: it would be lost, or committed alone."""

    async def main():
        engine = create_async_engine(pg_url.set(drivername=f"postgresql+{driver}"))

        def run(sync):
            sync.enqueue(work, Work("in time"))
            sync.prepare()
            with pytest.raises(InvalidRequestError, match="prepared"):
                sync.enqueue(work, Work("late"))
            sync.commit()

        async with AsyncJobSession(engine, twophase=True) as session:
            await session.run_sync(run)
        await engine.dispose()

    asyncio.run(main())
    engine = create_engine(pg_url)
    assert keys(engine) == ["in time"]
    engine.dispose()


# --- several engines -------------------------------------------------------------------


@pytest.fixture
def other_database(databases):
    with databases.fresh() as url:
        engine = create_engine(url)
        yield engine
        engine.dispose()


@pytest.mark.covers("C06")
def test_jobs_go_where_the_session_says_they_live(
    engine, other_database, second_engine
):
    binds = {Base: engine, models.Base: engine}
    with JobSession(other_database, binds=binds) as session:
        session.add(Order(id=1, org_id=1))
        session.enqueue(work, Work("a"))
        session.commit()
    assert (keys(second_engine), orders(second_engine)) == (["a"], [1])
    assert keys(other_database) == []


@pytest.mark.covers("C06")
def test_a_session_that_would_keep_jobs_apart_from_its_rows_is_refused(
    engine, other_database, second_engine
):
    """Both engines are named; nothing of it is enqueued."""
    with JobSession(other_database, binds={Order: engine}) as session:
        session.add(Order(id=1, org_id=1))
        with pytest.raises(EnqueueRoutingError) as caught:
            session.enqueue(work, Work("a"))
        for place in (engine, other_database):
            assert str(place.url) in str(caught.value)
        session.commit()
    assert (keys(second_engine), orders(second_engine)) == ([], [1])
    assert keys(other_database) == []


@pytest.mark.covers("C06")
def test_two_engines_of_one_database_are_two_transactions(engine, make_engine):
    session = JobSession(make_engine(), binds={Order: engine})
    with pytest.raises(EnqueueRoutingError):
        session.enqueue(work, Work("a"))
    session.close()


@pytest.mark.covers("C06")
def test_a_session_without_a_bind_for_jobs_is_refused(engine):
    session = JobSession(binds={Order: engine})
    with pytest.raises(UnboundExecutionError):
        session.enqueue(work, Work("a"))
    session.close()


class Routing(JobSession):
    """The recipe for reading from a replica: writes and flushes go to the primary."""

    primary = replica = None

    def get_bind(self, mapper=None, *, clause=None, **kw):
        if self._flushing or (
            clause is not None and clause.is_dml and clause.is_update
        ):
            return self.primary
        return self.replica


@pytest.mark.covers("C06")
def test_a_routing_session_writes_jobs_to_the_primary(
    engine, other_database, second_engine
):
    Routing.primary, Routing.replica = engine, other_database
    with Routing() as session:
        session.scalars(select(Order)).all()
        session.enqueue(work, Work("a"))
        session.add(Order(id=1, org_id=1))
        session.commit()
        session.enqueue(work, Work("b"))
        session.commit()
    assert (keys(second_engine), orders(second_engine)) == (["a", "b"], [1])
    assert keys(other_database) == []


@pytest.mark.covers("C06")
@pytest.mark.needs("two_phase")
def test_a_two_phase_session_may_keep_jobs_in_another_database(
    two_phase, engine, other_database, second_engine
):
    """Both commit or none: here nothing is refused."""
    with JobSession(other_database, binds={Order: engine}, twophase=True) as session:
        session.add(Order(id=1, org_id=1))
        session.enqueue(work, Work("a"))
        session.commit()
        session.add(Order(id=2, org_id=1))
        session.enqueue(work, Work("a"), on_duplicate="error")
        with pytest.raises(Exception, match="'a'"):
            session.commit()
        session.rollback()
    assert orders(second_engine) == [1]
    assert keys(other_database) == ["a"]


@pytest.mark.covers("C06")
def test_a_read_only_server_refuses_the_commit_and_says_why(make_engine, second_engine):
    """A standby answers the same. Nothing is lost in silence."""
    engine = make_engine(
        connect_args={"options": "-c default_transaction_read_only=on"}
    )
    with JobSession(engine) as session:
        session.enqueue(work, Work("a"))
        with pytest.raises(DBAPIError, match="read-only") as caught:
            session.commit()
        assert sqlstate(caught.value) == "25006"
    assert keys(second_engine) == []
