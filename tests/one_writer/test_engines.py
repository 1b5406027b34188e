"""Engines that cannot carry jobs are refused, with what to do instead."""

from __future__ import annotations

import asyncio
import sqlite3
import sys

import pytest
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session as PlainSession
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import StaticPool

from sqla_jobs import Jobs, JobSession, Worker, enqueue, metadata
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.dialects.sqlite import connecting
from sqla_jobs.exc import EngineUnsuitableError, WorkerConfigError
from sqla_jobs.models import Job
from tests.support.enqueuing import Work, borrow_and_commit, keys, orders, work
from tests.support.shop import Order
from tests.worker import app


def begins_with(engine, begin):
    """Let *engine* begin its transactions by the statement *begin*."""

    @event.listens_for(engine, "connect")
    def connect(connection, record):
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def on_begin(connection):
        connection.exec_driver_sql(begin)

    return engine


@pytest.fixture
def deferred(make_engine):
    return begins_with(make_engine(), "BEGIN")


@pytest.fixture
def immediate(make_engine):
    return begins_with(make_engine(), "BEGIN IMMEDIATE")


@pytest.mark.covers("C114")
@pytest.mark.parametrize("begin", ["BEGIN", "begin deferred", "BEGIN TRANSACTION;"])
def test_a_deferred_begin_is_refused_at_the_first_enqueue(
    make_engine, second_engine, begin
):
    engine = begins_with(make_engine(), begin)
    with JobSession(engine) as session:
        session.add(Order(id=1, org_id=1))
        session.flush()
        with pytest.raises(EngineUnsuitableError, match="BEGIN IMMEDIATE"):
            session.enqueue(work, Work("a"))
    with engine.connect() as connection:
        with pytest.raises(EngineUnsuitableError):
            enqueue(connection, work, Work("b"))
        connection.commit()
    assert keys(second_engine) == []


def test_a_deferred_begin_is_refused_when_nothing_came_before_the_job(
    deferred, second_engine
):
    """The enqueue does no I/O, so its commit is the first to know."""
    with JobSession(deferred) as session:
        session.add(Order(id=1, org_id=1))
        session.enqueue(work, Work("a"))
        with pytest.raises(EngineUnsuitableError):
            session.commit()
    borrow_and_commit(deferred)
    assert (keys(second_engine), orders(second_engine)) == ([], [])


def test_a_deferred_begin_of_an_async_engine_is_refused(async_url, second_engine):
    engine = create_async_engine(async_url)
    begins_with(engine.sync_engine, "BEGIN")

    async def ask():
        async with AsyncJobSession(engine) as session:
            session.enqueue(work, Work("a"))
            with pytest.raises(EngineUnsuitableError):
                await session.commit()
        await engine.dispose()

    asyncio.run(ask())
    assert keys(second_engine) == []


@pytest.mark.covers("C114")
def test_a_refused_upgrade_is_explained_where_the_begin_was_not_seen(
    make_engine, second_engine
):
    """A listener that goes past SQLAlchemy: nothing shows what it sends."""
    engine = make_engine()

    @event.listens_for(engine, "begin")
    def on_begin(connection):
        connection.connection.dbapi_connection.execute("BEGIN")

    with JobSession(engine) as session:
        session.execute(select(Order.id)).all()
        with PlainSession(second_engine) as other, other.begin():
            other.add(Order(id=1, org_id=1))
        session.enqueue(work, Work("a"))
        with pytest.raises(EngineUnsuitableError, match="began with a read"):
            session.commit()
    borrow_and_commit(engine)
    assert keys(second_engine) == []


def test_an_immediate_begin_carries_jobs_also_in_savepoints(immediate, second_engine):
    for kind in (JobSession, PlainSession):
        with kind(immediate) as session:
            with session.begin_nested():
                enqueue(session, work, Work(f"{kind.__name__} gone"))
            session.rollback()
            with session.begin_nested():
                enqueue(session, work, Work(kind.__name__))
            session.commit()
    assert keys(second_engine) == ["JobSession", "Session"]


@pytest.mark.parametrize("mode", [True, False])
def test_the_drivers_new_modes_are_refused(make_engine, second_engine, mode):
    """Python 3.12 has them; an older one gets connections that say the same."""
    if sys.version_info >= (3, 12):
        engine = make_engine(connect_args={"autocommit": mode})
    else:
        kind = type("Connection", (sqlite3.Connection,), {"autocommit": mode})
        engine = make_engine(connect_args={"factory": kind})
    with (
        pytest.raises(EngineUnsuitableError, match=f"autocommit={mode}"),
        JobSession(engine) as session,
    ):
        session.enqueue(work, Work("a"))
        session.commit()
    assert keys(second_engine) == []


def test_an_old_library_is_refused(engine, second_engine, monkeypatch):
    monkeypatch.setattr(connecting, "OLDEST", (99, 0))
    with (
        pytest.raises(EngineUnsuitableError, match=r"needs 99\.0 or newer"),
        JobSession(engine) as session,
    ):
        session.enqueue(work, Work("a"))
        session.commit()
    assert keys(second_engine) == []


def read_only(url):
    return create_engine(f"sqlite:///file:{url.database}?mode=ro&uri=true")


def test_a_read_only_database_is_refused(url, second_engine):
    engine = read_only(url)
    with JobSession(engine) as session:
        session.enqueue(work, Work("a"))
        with pytest.raises(EngineUnsuitableError, match="read-only"):
            session.commit()
    engine.dispose()
    assert keys(second_engine) == []


# --- workers ---------------------------------------------------------------------------


def starts(engine):
    return Worker(Jobs(), session=sessionmaker(engine))


@pytest.mark.covers("C116")
@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("sqlite://", {}),
        ("sqlite://", {"poolclass": StaticPool}),
        ("sqlite:///file:shared?mode=memory&cache=shared&uri=true", {}),
    ],
    ids=["default", "static", "shared"],
)
@pytest.mark.filterwarnings("ignore:Selection of the")
def test_a_database_in_memory_is_refused_by_a_worker(place, options):
    engine = create_engine(place, **options)
    metadata.create_all(engine)
    with JobSession(engine) as session:
        session.enqueue(work, Work("a"))
        session.commit()
        assert session.scalars(select(Job.key)).all() == ["a"]
    with pytest.raises(EngineUnsuitableError, match="in memory"):
        starts(engine).start()
    engine.dispose()


def test_a_worker_refuses_a_deferred_begin(deferred):
    with pytest.raises(EngineUnsuitableError, match="deferred BEGIN"):
        starts(deferred).start()


def test_a_worker_refuses_a_read_only_database(url):
    engine = read_only(url)
    with pytest.raises(EngineUnsuitableError, match="read-only"):
        starts(engine).start()
    engine.dispose()


def test_a_worker_refuses_autocommit_and_takes_an_immediate_begin(
    make_engine, immediate, queue, start
):
    """In both the driver begins nothing; in one of them a listener does."""
    with pytest.raises(WorkerConfigError, match="AUTOCOMMIT"):
        starts(make_engine(isolation_level="AUTOCOMMIT")).start()
    start(session=sessionmaker(immediate, class_=JobSession))
    queue.add(app.visit, "a")
    queue.wait_for_states(succeeded=1)
    assert queue.visits() == [("a", 1)]


def test_the_engines_own_connections_use_the_log(url, queue, start, engine):
    """Whatever mode the file was in."""
    with engine.connect() as connection:
        connection.execute(text("PRAGMA journal_mode = DELETE"))
    start()
    queue.add(app.visit, "a")
    queue.wait_for_states(succeeded=1)
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
