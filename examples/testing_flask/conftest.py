"""Every test in a transaction that is rolled back."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from flask.testing import FlaskClient
from sqlalchemy.orm import sessionmaker

import sqla_jobs
from examples.testing_flask.app import app, db, outbox
from sqla_jobs import JobSession
from sqla_jobs.testing import rolled_back


@pytest.fixture(scope="session")
def tables() -> None:
    with app.app_context():
        db.metadata.create_all(db.engine)
        sqla_jobs.metadata.create_all(db.engine)


@pytest.fixture
def factory(
    tables: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[sessionmaker[JobSession]]:
    outbox.clear()
    with app.app_context(), rolled_back(db.engine) as factory:
        # Flask-SQLAlchemy looks engines up here for each session: let it find the
        # test's connection, which sessions join by a savepoint.
        engines = cast("dict[str | None, Any]", db.engines)
        monkeypatch.setitem(engines, None, factory.kw["bind"])
        db.session.configure(join_transaction_mode="create_savepoint")
        yield factory
        db.session.remove()


@pytest.fixture
def client(factory: sessionmaker[JobSession]) -> FlaskClient:
    return app.test_client()
