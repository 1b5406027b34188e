"""Enqueue inside savepoints: what is rolled back goes, what is around it stays."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session as PlainSession

from sqla_jobs import enqueue, write_jobs
from sqla_jobs.exc import DuplicateJobError, NotWrittenError
from tests.support.enqueuing import Work, keys, orders, work
from tests.support.shop import Order

pytestmark = pytest.mark.conformance


class Undo(Exception):
    pass


def test_a_released_savepoint_keeps_its_jobs(Session, second_engine):
    with Session() as session:
        session.enqueue(work, Work("before"))
        with session.begin_nested():
            session.enqueue(work, Work("inside"))
        session.enqueue(work, Work("after"))
        session.commit()
    assert keys(second_engine) == ["after", "before", "inside"]


@pytest.mark.covers("C02")
@pytest.mark.parametrize("autoflush", [True, False])
@pytest.mark.parametrize("touched", [True, False], ids=["used", "untouched"])
def test_a_rolled_back_savepoint_loses_its_jobs_and_no_others(
    Session, second_engine, autoflush, touched
):
    """Whether the session had a connection before the savepoint or not."""
    with Session(autoflush=autoflush) as session:
        if touched:
            session.execute(text("SELECT 1"))
        session.enqueue(work, Work("a"))
        with pytest.raises(Undo), session.begin_nested():
            session.add(Order(id=1, org_id=1))
            lost = session.enqueue(work, Work("b"))
            raise Undo
        session.enqueue(work, Work("c"))
        session.add(Order(id=2, org_id=1))
        session.commit()
    assert keys(second_engine) == ["a", "c"]
    assert orders(second_engine) == [2]
    with pytest.raises(NotWrittenError):
        _ = lost.outcome


@pytest.mark.covers("C02")
def test_a_duplicate_in_a_rolled_back_savepoint_leaves_the_session_usable(
    Session, second_engine
):
    with Session.begin() as session:
        session.enqueue(work, Work("b"))
    with Session() as session:
        session.enqueue(work, Work("a"))
        with pytest.raises(Undo), session.begin_nested():
            kept = session.enqueue(work, Work("b"))
            session.write_jobs()
            assert kept.outcome == "kept"
            raise Undo
        session.add(Order(id=2, org_id=1))
        session.commit()
    assert keys(second_engine) == ["a", "b"]
    assert orders(second_engine) == [2]


@pytest.mark.covers("C02")
def test_a_failed_flush_in_a_savepoint_takes_only_that_savepoints_jobs(
    Session, second_engine
):
    with Session() as session:
        session.add(Order(id=1, org_id=1, note="same"))
        session.enqueue(work, Work("a"))
        with pytest.raises(IntegrityError), session.begin_nested():
            session.enqueue(work, Work("b"))
            session.add(Order(id=2, org_id=1, note="same"))
            session.flush()
        session.enqueue(work, Work("c"))
        session.commit()
    assert keys(second_engine) == ["a", "c"]
    assert orders(second_engine) == [1]


def test_written_jobs_of_a_rolled_back_savepoint_are_unwritten(Session, second_engine):
    with Session() as session:
        outer = session.enqueue(work, Work("outer"))
        with pytest.raises(Undo), session.begin_nested():
            inner = session.enqueue(work, Work("inner"))
            session.write_jobs()
            assert (outer.outcome, inner.outcome) == ("created", "created")
            raise Undo
        assert outer.outcome == "created"
        with pytest.raises(NotWrittenError):
            _ = inner.outcome
        session.commit()
    assert keys(second_engine) == ["outer"]


def test_nested_savepoints_each_own_their_jobs(Session, second_engine):
    with Session() as session:
        session.enqueue(work, Work("0"))
        with session.begin_nested():
            session.enqueue(work, Work("1"))
            with pytest.raises(Undo), session.begin_nested():
                session.enqueue(work, Work("2"))
                with session.begin_nested():
                    session.enqueue(work, Work("3"))
                raise Undo
            session.enqueue(work, Work("4"))
        session.commit()
    assert keys(second_engine) == ["0", "1", "4"]


def test_an_outer_savepoint_takes_released_inner_ones_with_it(Session, second_engine):
    with Session() as session:
        handles = [session.enqueue(work, Work("0"))]
        outer = session.begin_nested()
        handles.append(session.enqueue(work, Work("1")))
        with session.begin_nested():
            handles.append(session.enqueue(work, Work("2")))
        assert [h.outcome for h in handles] == ["created"] * 3
        outer.rollback()
        assert handles[0].outcome == "created"
        for handle in handles[1:]:
            with pytest.raises(NotWrittenError):
                _ = handle.outcome
        session.commit()
    assert keys(second_engine) == ["0"]


@pytest.mark.parametrize("end", ["rollback", "commit"])
def test_an_outer_savepoint_may_end_while_an_inner_one_is_open(
    engine, second_engine, end
):
    with engine.connect() as connection:
        enqueue(connection, work, Work("0"))
        outer = connection.begin_nested()
        enqueue(connection, work, Work("1"))
        inner = connection.begin_nested()
        enqueue(connection, work, Work("2"))
        with pytest.warns(match="nested transaction already deassociated"):
            getattr(outer, end)()
        assert (outer.is_active, inner.is_active) == (False, True)
        enqueue(connection, work, Work("3"))
        connection.commit()
    kept = ["0", "3"] if end == "rollback" else ["0", "1", "2", "3"]
    assert keys(second_engine) == kept


def test_a_session_rolls_back_its_outer_savepoint_over_an_open_inner_one(
    Session, second_engine
):
    with Session() as session:
        session.enqueue(work, Work("0"))
        outer = session.begin_nested()
        session.enqueue(work, Work("1"))
        session.begin_nested()
        session.enqueue(work, Work("2"))
        session.write_jobs()
        outer.rollback()
        session.enqueue(work, Work("3"))
        session.commit()
    assert keys(second_engine) == ["0", "3"]


def test_a_savepoint_from_before_the_first_enqueue_is_known(Session, second_engine):
    """Its engine is armed while the savepoint is already open."""
    with Session() as session:
        with pytest.raises(Undo), session.begin_nested():
            session.execute(text("SELECT 1"))
            lost = session.enqueue(work, Work("lost"))
            session.write_jobs()
            raise Undo
        with pytest.raises(NotWrittenError):
            _ = lost.state
        session.enqueue(work, Work("stays"))
        session.commit()
    assert keys(second_engine) == ["stays"]


def test_only_the_handles_of_the_savepoint_from_before_are_unwritten(
    Session, second_engine
):
    """Two savepoints older than the first enqueue: only the inner one rolls back."""
    with Session() as session:
        session.execute(text("SELECT 1"))
        outer = session.begin_nested()
        session.execute(text("SELECT 1"))
        first = session.enqueue(work, Work("first"))
        inner = session.begin_nested()
        second = session.enqueue(work, Work("second"))
        session.write_jobs()
        inner.rollback()
        assert first.outcome == "created"
        with pytest.raises(NotWrittenError):
            _ = second.outcome
        outer.commit()
        assert first.outcome == "created"
        session.commit()
    assert keys(second_engine) == ["first"]


@pytest.mark.needs("aborts")
def test_a_savepoint_that_fails_to_open_does_not_confuse_the_others(
    engine, second_engine
):
    """The server refuses SAVEPOINT in an aborted transaction."""
    with engine.connect() as connection:
        enqueue(connection, work, Work("0"))
        outer = connection.begin_nested()
        inside = enqueue(connection, work, Work("1"))
        write_jobs(connection)
        assert inside.outcome == "created"
        with pytest.raises(Exception, match="division by zero"):
            connection.execute(text("SELECT 1/0"))
        with pytest.raises(Exception, match="aborted"):
            connection.begin_nested()
        outer.rollback()
        with pytest.raises(NotWrittenError):
            _ = inside.outcome
        enqueue(connection, work, Work("2"))
        connection.commit()
    assert keys(second_engine) == ["0", "2"]


def test_a_plain_session_releases_savepoints_as_well(engine, second_engine):
    with PlainSession(engine) as session, session.begin():
        with session.begin_nested():
            enqueue(session, work, Work("inside"))
        enqueue(session, work, Work("after"))
    assert keys(second_engine) == ["after", "inside"]


def test_a_refused_job_at_release_takes_only_its_savepoint(Session, second_engine):
    with Session.begin() as session:
        session.enqueue(work, Work("there"))
    with Session() as session:
        session.enqueue(work, Work("a"))
        with pytest.raises(DuplicateJobError), session.begin_nested():
            session.add(Order(id=1, org_id=1))
            session.enqueue(work, Work("there"), on_duplicate="error")
            session.enqueue(work, Work("b"))
        session.enqueue(work, Work("c"))
        session.commit()
    assert keys(second_engine) == ["a", "c", "there"]
    assert orders(second_engine) == []


def test_write_jobs_in_a_savepoint_writes_those_from_outside_it(Session):
    with Session() as session:
        outer = session.enqueue(work, Work("outer"))
        with session.begin_nested():
            session.write_jobs()
            assert outer.outcome == "created"
        session.rollback()
