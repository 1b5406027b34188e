"""Enqueue on a Core Connection, and Sessions that joined a Connection's transaction."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.orm import Session as PlainSession

from sqla_jobs import JobSession, enqueue, enqueue_many, write_jobs
from sqla_jobs.exc import NotWrittenError
from sqla_jobs.models import Job
from tests.support.enqueuing import Work, keys, nothing_lasts, orders, work
from tests.support.shop import Order

pytestmark = pytest.mark.conformance


def test_a_connection_commits_its_jobs_with_its_rows(engine, second_engine):
    with engine.begin() as connection:
        connection.execute(insert(Order).values(id=1, org_id=1))
        handle = enqueue(connection, work, Work("a"))
        with pytest.raises(NotWrittenError):
            _ = handle.outcome
        assert keys(second_engine) == []
    assert handle.outcome == "created"
    assert keys(second_engine) == ["a"]
    assert orders(second_engine) == [1]


def test_an_enqueue_begins_the_connections_transaction(engine, second_engine):
    with engine.connect() as connection:
        enqueue_many(connection, work, [Work("a"), Work("b")])
        assert connection.in_transaction()
        connection.commit()
        enqueue(connection, work, Work("c"))
        connection.commit()
    assert keys(second_engine) == ["a", "b", "c"]


@pytest.mark.parametrize("end", ["rollback", "close", "error"])
def test_a_connection_that_does_not_commit_leaves_nothing(engine, second_engine, end):
    with nothing_lasts(engine, second_engine):
        connection = engine.connect()
        connection.execute(insert(Order).values(id=1, org_id=1))
        enqueue(connection, work, Work("a"))
        write_jobs(connection)
        enqueue(connection, work, Work("b"))
        if end == "rollback":
            connection.rollback()
        if end == "error":
            with pytest.raises(ZeroDivisionError), connection:
                raise ZeroDivisionError
        connection.close()


def test_a_rolled_back_connection_starts_over(engine, second_engine):
    with engine.connect() as connection:
        enqueue(connection, work, Work("lost"))
        connection.rollback()
        enqueue(connection, work, Work("kept"))
        connection.commit()
    assert keys(second_engine) == ["kept"]


def test_nested_transactions_of_a_connection(engine, second_engine):
    with engine.connect() as connection:
        enqueue(connection, work, Work("0"))
        with connection.begin_nested():
            enqueue(connection, work, Work("1"))
        nested = connection.begin_nested()
        enqueue(connection, work, Work("2"))
        nested.rollback()
        connection.commit()
    assert keys(second_engine) == ["0", "1"]


def test_engines_with_options_of_their_own_write_each_job_once(engine, second_engine):
    """They share their parent's listeners: heard twice, a savepoint would count twice."""
    special = engine.execution_options(logging_token="special")
    for place, number in ((special, 1), (engine, 2), (special, 3)):
        with place.connect() as connection:
            enqueue(connection, work, Work(f"{number}a"))
            outer = connection.begin_nested()
            enqueue(connection, work, Work(f"{number}b"))
            nested = connection.begin_nested()
            written = enqueue(connection, work, Work(f"{number}c"))
            write_jobs(connection)
            nested.rollback()
            with pytest.raises(NotWrittenError):
                _ = written.outcome
            again = enqueue(connection, work, Work(f"{number}d"))
            outer.commit()
            assert again.outcome == "created"
            connection.commit()
    assert keys(second_engine) == [f"{n}{c}" for n in (1, 2, 3) for c in "abd"]


# --- joined to an external transaction -------------------------------------------------

MODES = ["conditional_savepoint", "rollback_only", "control_fully", "create_savepoint"]


@pytest.mark.parametrize("kind", [JobSession, PlainSession])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_connection_decides_about_the_jobs_of_a_session_that_joined_it(
    engine, second_engine, kind, mode, end
):
    with engine.connect() as connection:
        outer = connection.begin()
        with kind(connection, join_transaction_mode=mode) as session:
            session.add(Order(id=1, org_id=1))
            handle = enqueue(session, work, Work("a"))
            session.commit()
        if mode != "control_fully":
            assert keys(second_engine) == []
            getattr(outer, end)()
    stays = end == "commit" or mode == "control_fully"
    assert keys(second_engine) == (["a"] if stays else [])
    assert orders(second_engine) == ([1] if stays else [])
    if not stays:
        with pytest.raises(NotWrittenError):
            _ = handle.outcome


@pytest.mark.parametrize("mode", MODES)
def test_a_rollback_of_a_session_that_joined_drops_its_jobs(
    engine, second_engine, mode
):
    with (
        engine.begin() as connection,
        JobSession(connection, join_transaction_mode=mode) as session,
    ):
        session.add(Order(id=1, org_id=1))
        session.enqueue(work, Work("a"))
        session.flush()
        session.rollback()
    assert keys(second_engine) == []
    assert orders(second_engine) == []


@pytest.mark.covers("C07")
def test_a_test_suite_that_rolls_everything_back_sees_its_jobs_and_leaves_none(
    engine, second_engine
):
    """The recipe for test suites: the app commits savepoints, the test rolls back."""
    with engine.connect() as connection:
        for _ in range(2):
            outer = connection.begin()
            session = JobSession(connection, join_transaction_mode="create_savepoint")
            session.enqueue(work, Work("first"))
            session.add(Order(id=1, org_id=1))
            session.commit()
            assert session.scalars(select(Job.key)).all() == ["first"]
            lost = session.enqueue(work, Work("lost"))
            session.write_jobs()
            session.rollback()
            with pytest.raises(NotWrittenError):
                _ = lost.outcome
            second = session.enqueue(work, Work("second"))
            session.commit()
            assert second.outcome == "created"
            assert session.scalars(select(Job.key).order_by(Job.key)).all() == [
                "first",
                "second",
            ]
            session.close()
            outer.rollback()
            assert connection.scalars(select(Job.key)).all() == []
            connection.rollback()
    assert keys(second_engine) == []


@pytest.mark.needs("late_savepoints")
def test_a_session_inside_a_savepoint_of_the_connection(engine, second_engine):
    with engine.connect() as connection, connection.begin():
        nested = connection.begin_nested()
        with JobSession(connection) as session:
            session.enqueue(work, Work("a"))
            session.commit()
        nested.rollback()
        with JobSession(connection) as session:
            session.enqueue(work, Work("b"))
            session.commit()
    assert keys(second_engine) == ["b"]


def test_the_connection_writes_jobs_of_a_session_that_did_nothing_else(
    engine, second_engine
):
    with engine.begin() as connection:
        with JobSession(connection) as session:
            session.enqueue(work, Work("a"))
            session.commit()
        connection.execute(text("SELECT 1"))
    assert keys(second_engine) == ["a"]
