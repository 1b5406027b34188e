"""The function form on every kind of session, enqueue_many, and the options."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import attrs
import flask_sqlalchemy.session
import pytest
import sqlmodel
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import select, text
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session as PlainSession
from sqlalchemy.orm import scoped_session, sessionmaker

from sqla_jobs import Jobs, JobSession, clock, enqueue, enqueue_many, write_jobs
from sqla_jobs.exc import EnqueueArgumentError, PayloadError
from sqla_jobs.models import Job
from tests.support.enqueuing import Work, bodies, keys, orders, other, stored, work
from tests.support.shop import Base, Order

pytestmark = pytest.mark.conformance

named = Jobs().declare(
    "shop.named",
    input=Work,
    output=int,
    idempotency_key=lambda i: "k",
    tenant=lambda i: i.key,
)
LATER = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)


class FlaskJobSession(JobSession, flask_sqlalchemy.session.Session):
    pass


class ModelSession(JobSession, sqlmodel.Session):
    pass


@pytest.mark.parametrize(
    "kind",
    [PlainSession, JobSession, sqlmodel.Session, ModelSession],
    ids=["plain", "job", "sqlmodel", "sqlmodel-job"],
)
def test_the_function_takes_any_session(engine, second_engine, kind):
    with kind(engine) as session:
        session.add(Order(id=1, org_id=1))
        handle = enqueue(session, work, Work("a"))
        enqueue_many(session, work, [Work("b"), Work("c")])
        write_jobs(session)
        assert handle.outcome == "created"
        session.commit()
    assert keys(second_engine) == ["a", "b", "c"]
    assert orders(second_engine) == [1]


@pytest.mark.parametrize("kind", [PlainSession, JobSession])
def test_the_function_takes_a_scoped_session(engine, second_engine, kind):
    session = scoped_session(sessionmaker(engine, class_=kind))
    enqueue(session, work, Work("a"))
    session.rollback()
    enqueue(session, work, Work("b"))
    session.add(Order(id=1, org_id=1))
    session.commit()
    session.remove()
    assert keys(second_engine) == ["b"]
    assert orders(second_engine) == [1]


@pytest.mark.parametrize("kind", [None, FlaskJobSession], ids=["flask", "flask-job"])
def test_the_function_takes_flask_sqlalchemys_session(engine, second_engine, kind):
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = engine.url
    options = {"class_": kind} if kind else {}
    db = SQLAlchemy(app, model_class=Base, session_options=options)
    with app.app_context():
        db.session.add(Order(id=1, org_id=1))
        enqueue(db.session, work, Work("lost"))
        db.session.rollback()
        db.session.add(Order(id=2, org_id=1))
        enqueue(db.session, work, Work("a"))
        db.session.commit()
        db.engine.dispose()
    assert keys(second_engine) == ["a"]
    assert orders(second_engine) == [2]


def test_the_function_refuses_what_is_no_session(engine):
    with pytest.raises(EnqueueArgumentError, match="Engine"):
        enqueue(engine, work, Work("a"))


def test_a_row_holds_what_was_asked_for(Session, second_engine):
    with Session(info={"enqueued_by": "ops@shop"}) as session:
        session.enqueue(other, Work("a", 7), run_at=LATER)
        session.enqueue(other, Work("b", 7), priority=9, enqueued_by="cron")
        session.commit()
    a, b = stored(second_engine, "a"), stored(second_engine, "b")
    assert (a.tenant, a.name, a.queue, a.key) == ("7", "shop.other", "other", "a")
    assert (a.state, a.priority, a.attempt, a.fence) == ("ready", 1, 0, 0)
    assert (a.run_at, a.input) == (LATER, {"key": "a", "n": 7})
    assert (a.enqueued_by, a.worker_id, a.finished_at) == ("ops@shop", None, None)
    assert (b.priority, b.enqueued_by) == (9, "cron")
    assert a.max_attempts == other.retry.attempts


def test_run_at_is_an_instant_in_whatever_zone_it_was_given(Session, second_engine):
    east = timezone(timedelta(hours=13, minutes=45))
    with Session.begin() as session:
        session.enqueue(work, Work("a"), run_at=LATER.astimezone(east))
    assert stored(second_engine, "a").run_at == LATER


def test_a_delay_counts_from_now(Session, second_engine):
    with Session.begin() as session:
        session.enqueue(work, Work("a"), delay="5m")
        session.enqueue(work, Work("b"), delay=timedelta(hours=1))
        session.enqueue(work, Work("c"))
    with second_engine.connect() as connection:
        now = connection.scalar(select(clock.now()))
    due = {k: stored(second_engine, k).run_at - now for k in "abc"}
    assert timedelta(minutes=4) < due["a"] <= timedelta(minutes=5)
    assert timedelta(minutes=59) < due["b"] <= timedelta(hours=1)
    assert timedelta(minutes=-1) < due["c"] <= timedelta(0)


@pytest.mark.needs("server")
@pytest.mark.covers("C09")
def test_times_do_not_count_from_the_beginning_of_the_transaction(
    Session, second_engine
):
    """now() is frozen at BEGIN; a job of an old transaction is neither old nor due."""
    with Session() as session:
        began = session.scalar(text("SELECT now()"))
        session.execute(text("SELECT pg_sleep(1.2)"))
        session.enqueue(work, Work("now"))
        session.enqueue(work, Work("later"), delay="3s")
        session.commit()
    now, later = stored(second_engine, "now"), stored(second_engine, "later")
    assert now.run_at - began >= timedelta(seconds=1.2)
    assert now.created_at - began >= timedelta(seconds=1.2)
    assert (
        timedelta(seconds=2.5) < later.run_at - now.created_at <= timedelta(seconds=3)
    )


@pytest.mark.needs("server")
@pytest.mark.covers("C09")
def test_a_delay_counts_from_the_call_not_from_the_write(Session, second_engine):
    with Session() as session:
        called = session.scalar(text("SELECT clock_timestamp()"))
        session.enqueue(work, Work("a"), delay="60s")
        session.execute(text("SELECT pg_sleep(1)"))
        session.commit()
    due = stored(second_engine, "a").run_at - called
    assert timedelta(seconds=59.9) < due < timedelta(seconds=60.8)


BAD_OPTIONS = {
    "naive": ({"run_at": LATER.replace(tzinfo=None)}, "run_at"),
    "text": ({"run_at": "2031-01-01"}, "run_at"),
    "both": ({"run_at": LATER, "delay": "1s"}, "delay"),
    "negative": ({"delay": "-1s"}, "delay"),
    "nan": ({"delay": float("nan")}, "delay"),
    "endless": ({"delay": timedelta.max}, "delay"),
    "priority": ({"priority": 10}, "priority"),
    "bool": ({"priority": True}, "priority"),
    "mode": ({"on_duplicate": "ignore"}, "on_duplicate"),
    "modes": ({"on_duplicate": ["keep"]}, "on_duplicate"),
    "nul": ({"enqueued_by": "a\x00b"}, "enqueued_by"),
    "surrogate": ({"enqueued_by": "\ud800"}, "enqueued_by"),
    "number": ({"enqueued_by": 7}, "enqueued_by"),
}


@pytest.mark.parametrize(("options", "names"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_bad_option_is_refused_at_the_call_and_nothing_is_half_done(
    Session, second_engine, options, names, many
):
    with Session() as session:
        session.enqueue(work, Work("good"))
        with pytest.raises(Exception, match=names) as caught:
            if many:
                session.enqueue_many(work, [Work("a"), Work("b")], **options)
            else:
                session.enqueue(work, Work("a"), **options)
        assert getattr(caught.value, "code", None) in {"enqueue-argument", "duration"}
        session.commit()
    assert keys(second_engine) == ["good"]


@attrs.frozen
class Strange:
    key: object


def test_one_bad_input_refuses_them_all(Session, second_engine):
    with Session() as session:
        with pytest.raises(PayloadError):
            session.enqueue_many(work, [Work("a"), Work("b", "text"), Work("c")])

        def inputs():
            yield Work("d")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            session.enqueue_many(work, inputs())
        session.add(Order(id=1, org_id=1))
        session.commit()
    assert keys(second_engine) == []
    assert orders(second_engine) == [1]


def test_no_inputs_are_no_jobs_and_no_transaction(Session):
    with Session() as session:
        assert session.enqueue_many(work, []) == []
        assert not session.in_transaction()


def test_a_bad_call_begins_no_transaction(Session):
    with Session() as session:
        with pytest.raises(EnqueueArgumentError):
            session.enqueue(work, Work("a"), priority=-1)
        with pytest.raises(PayloadError):
            session.enqueue(work, Work("a", "text"))
        assert not session.in_transaction()


def test_without_autobegin_an_enqueue_needs_a_transaction_as_add_does(
    Session, second_engine
):
    with Session(autobegin=False) as session:
        with pytest.raises(InvalidRequestError, match="begin"):
            session.enqueue(work, Work("a"))
        with session.begin():
            session.enqueue(work, Work("b"))
    assert keys(second_engine) == ["b"]


HOSTILE = [
    "'; DROP TABLE sqla_job; --",
    '"quoted" \\ back\\slash',
    "{a,b}",
    "NULL",
    '","',
    "%s %(ids)s :ids $1",
    "tab\tnewline\nreturn\r",
    "é\u0301 日本語 🐘 \u202e",
    " leading and trailing ",
    "a" * 199 + "é",
]


@pytest.mark.parametrize("key", HOSTILE[:-1], ids=range(len(HOSTILE) - 1))
def test_tenants_are_data(Session, second_engine, key):
    with Session.begin() as session:
        first = session.enqueue(named, Work(key))
    with Session.begin() as session:
        again = session.enqueue(named, Work(key, 2), on_duplicate="rerun")
    assert (again.id, again.outcome) == (first.id, "rerun")
    job = stored(second_engine, "k")
    assert (job.tenant, job.input) == (key, {"key": key, "n": 2})


@pytest.mark.parametrize("key", HOSTILE, ids=range(len(HOSTILE)))
def test_keys_are_data(Session, second_engine, key):
    with Session.begin() as session:
        first = session.enqueue(work, Work(key))
    with Session.begin() as session:
        again = session.enqueue(work, Work(key, 2), on_duplicate="replace")
    assert (again.id, again.outcome) == (first.id, "replaced")
    assert stored(second_engine, first.key).input == {"key": key, "n": 2}
    assert bodies(second_engine) == 1


def test_a_query_over_our_models_writes_pending_jobs_first(Session):
    with Session() as session:
        handle = session.enqueue(work, Work("a"))
        session.scalars(select(Order)).all()
        with pytest.raises(Exception, match="not written"):
            _ = handle.outcome
        assert session.scalars(select(Job.key)).all() == ["a"]
        assert handle.outcome == "created"
        second = session.enqueue(work, Work("b"))
        assert session.get_one(Job, second.id).key == "b"


def test_a_plain_session_queries_our_models_without_writing(engine):
    with PlainSession(engine) as session:
        enqueue(session, work, Work("a"))
        assert session.scalars(select(Job.key)).all() == []
        write_jobs(session)
        assert session.scalars(select(Job.key)).all() == ["a"]
