"""Enqueue from listeners: mapper events, and hooks that run late in a commit."""

from __future__ import annotations

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session as PlainSession
from sqlalchemy.orm import object_session

from sqla_jobs import enqueue
from tests.support.enqueuing import Work, keys, nothing_lasts, orders, work
from tests.support.shop import Order

pytestmark = pytest.mark.conformance


@pytest.fixture
def on_order():
    """Enqueue a job for each inserted order; removed after the test."""

    def after_insert(mapper, connection, target):
        session = object_session(target)
        assert session is not None
        enqueue(session, work, Work(f"order:{target.id}"))

    event.listen(Order, "after_insert", after_insert)
    yield
    event.remove(Order, "after_insert", after_insert)


@pytest.mark.parametrize("first", [True, False], ids=["after-another", "alone"])
def test_a_mapper_event_enqueues_in_its_sessions_transaction(
    Session, second_engine, on_order, first
):
    with Session() as session:
        if first:
            session.enqueue(work, Work("first"))
        session.add(Order(id=1, org_id=1))
        session.commit()
    assert "order:1" in keys(second_engine)


def test_a_mapper_event_on_the_connection_it_is_given_enqueues_there(
    Session, second_engine
):
    def after_insert(mapper, connection, target):
        enqueue(connection, work, Work(f"order:{target.id}"))

    event.listen(Order, "after_insert", after_insert)
    try:
        with Session.begin() as session:
            session.add(Order(id=1, org_id=1))
    finally:
        event.remove(Order, "after_insert", after_insert)
    assert keys(second_engine) == ["order:1"]


def test_what_a_mapper_event_enqueued_is_rolled_back_with_its_row(
    Session, engine, second_engine, on_order
):
    with nothing_lasts(engine, second_engine), Session() as session:
        session.add(Order(id=1, org_id=1))
        session.flush()
        session.rollback()


def late(session, name, *, order=None):
    """Listen on *session* alone, and enqueue the first time."""
    done = []

    def listener(session, *context):
        if done:
            return
        done.append(True)
        if order is not None:
            session.add(order)
        enqueue(session, work, Work("late"))

    event.listen(session, name, listener)


@pytest.mark.parametrize("kind", ["job", "plain"])
@pytest.mark.parametrize("when", ["before", "after", "only"])
@pytest.mark.parametrize("touched", [True, False], ids=["used", "untouched"])
def test_a_late_before_commit_listener_enqueues(
    Session, engine, second_engine, kind, when, touched
):
    """Registered before or after the first enqueue, or with no other one at all."""
    with Session() if kind == "job" else PlainSession(engine) as session:
        if touched:
            session.execute(text("SELECT 1"))
        else:
            session.begin()
        if when == "before":
            late(session, "before_commit")
        if when != "only":
            enqueue(session, work, Work("first"))
        if when != "before":
            late(session, "before_commit")
        session.commit()
    assert keys(second_engine) == (["late"] if when == "only" else ["first", "late"])


def test_a_before_commit_listener_of_a_subclass_enqueues(engine, second_engine):
    class Shop(PlainSession):
        pass

    def before_commit(session):
        enqueue(session, work, Work("late"))

    event.listen(Shop, "before_commit", before_commit)
    with Shop(engine) as session:
        session.add(Order(id=1, org_id=1))
        session.commit()
    assert keys(second_engine) == ["late"]
    assert orders(second_engine) == [1]


@pytest.mark.parametrize(
    "name", ["before_flush", "after_flush", "after_flush_postexec"]
)
def test_a_flush_during_the_commit_enqueues(Session, second_engine, name):
    with Session() as session:
        late(session, name)
        session.add(Order(id=1, org_id=1))
        session.commit()
    assert keys(second_engine) == ["late"]


def test_a_flush_that_a_late_listener_causes_enqueues(Session, second_engine, on_order):
    with Session() as session:
        session.begin()
        late(session, "before_commit", order=Order(id=7, org_id=1))
        session.commit()
    assert keys(second_engine) == ["late", "order:7"]


@pytest.mark.parametrize("earlier", [True, False], ids=["after-ours", "first"])
def test_a_commit_listener_of_the_connection_enqueues(engine, second_engine, earlier):
    """Registered after ours (the engine is armed) or before."""
    done = []

    def on_commit(connection):
        if not done:
            done.append(True)
            enqueue(connection, work, Work("late"))

    with engine.connect() as connection:
        if earlier:
            enqueue(connection, work, Work("first"))
        event.listen(engine, "commit", on_commit)
        connection.execute(text("SELECT 1"))
        connection.commit()
    assert "late" in keys(second_engine)


@pytest.mark.parametrize("touched", [True, False], ids=["used", "untouched"])
def test_after_the_commit_a_listener_cannot_enqueue_in_that_transaction(
    Session, second_engine, touched
):
    """As the session refuses SQL there: nobody would commit the job."""
    errors = []

    def after_commit(session):
        try:
            session.enqueue(work, Work("too late"))
        except InvalidRequestError as error:
            errors.append(str(error))

    with Session() as session:
        event.listen(session, "after_commit", after_commit)
        if touched:
            session.enqueue(work, Work("in time"))
        else:
            session.begin()
        session.commit()
    assert ["before_commit" in e for e in errors] == [True]
    assert keys(second_engine) == (["in time"] if touched else [])


def test_an_error_of_a_late_commit_listeners_job_leaves_nothing(
    make_engine, Session, second_engine
):
    with Session.begin() as session:
        session.enqueue(work, Work("there"))
    engine = make_engine(pool_size=1, max_overflow=0)

    def on_commit(connection):
        if connection.info.pop("once", False):
            enqueue(connection, work, Work("there"), on_duplicate="error")

    with nothing_lasts(engine, second_engine), engine.connect() as connection:
        enqueue(connection, work, Work("first"))
        event.listen(engine, "commit", on_commit)
        connection.info["once"] = True
        with pytest.raises(Exception, match="exists already|already exists|duplicate"):
            connection.commit()
