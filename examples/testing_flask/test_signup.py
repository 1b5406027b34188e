"""What the application's own tests say about its jobs."""

import pytest
from flask.testing import FlaskClient
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import sessionmaker

from examples.testing_flask.app import User, Welcome, db, jobs, outbox, welcome
from sqla_jobs import JobSession, enqueue
from sqla_jobs.testing import Clock, assert_enqueued, drain, refute_enqueued, run_job

Factory = sessionmaker[JobSession]


def test_a_new_user_is_welcomed(client: FlaskClient, factory: Factory) -> None:
    signed_up = client.post("/users", data={"email": "ann@example.org"})
    user_id = signed_up.get_json()["id"]
    with factory() as session:
        assert_enqueued(session, welcome, user_id=user_id)
    assert drain(factory, jobs).succeeded == 1
    assert outbox == [("shop@example.org", "ann@example.org")]
    assert db.session.get_one(User, user_id).welcomed


def test_a_refused_sign_up_enqueues_nothing(
    client: FlaskClient, factory: Factory
) -> None:
    assert client.post("/users").status_code == 400
    with factory() as session:
        refute_enqueued(session, welcome)


def test_the_test_may_use_the_applications_session(factory: Factory) -> None:
    db.session.add(User(id=1, email="bob@example.org"))
    enqueue(db.session, welcome, Welcome(user_id=1))
    db.session.commit()
    assert drain(factory, jobs).succeeded == 1


def test_a_user_who_is_gone_ends_in_the_dead_letters(
    factory: Factory, sqla_jobs_clock: Clock
) -> None:
    with factory.begin() as session:
        session.enqueue(welcome, Welcome(user_id=404))
    with pytest.raises(NoResultFound):
        drain(factory, jobs)
    sqla_jobs_clock.advance("1h")
    assert drain(factory, jobs, raise_errors=False).dead == 1


def test_one_handler_alone(factory: Factory) -> None:
    with factory() as session:
        session.add(User(id=1, email="bob@example.org"))
        run_job(session, welcome, Welcome(user_id=1))
        assert session.get_one(User, 1).welcomed
    assert outbox == [("shop@example.org", "bob@example.org")]
