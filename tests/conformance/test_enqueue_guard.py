"""The guard: a commit listener that raises leaves nothing for the next borrower.

SQLAlchemy does not roll back when a listener raises: ``close()`` would return the
connection with its transaction open, and the next borrower would commit the rows. So
each case runs on a pool of one connection, the next borrower commits, and a second
engine looks for what must not be there.
"""

from __future__ import annotations

import contextlib

import pytest
from sqlalchemy import event, insert, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm import Session as PlainSession

from sqla_jobs import JobSession, cancel_job, enqueue, write_jobs
from sqla_jobs.dialects import dialect_named
from sqla_jobs.exc import DuplicateJobError, NotWrittenError
from sqla_jobs.queue import wakeup
from tests.support.enqueuing import Work, keys, nothing_lasts, orders, stored, work
from tests.support.failing import FAILURES, KEY
from tests.support.shop import Order

pytestmark = pytest.mark.conformance


@pytest.fixture
def pool_of_one(make_engine):
    return make_engine(pool_size=1, max_overflow=0)


@contextlib.contextmanager
def made(name, second_engine):
    kind = FAILURES[name]
    if kind.by_server and not dialect_named(second_engine.dialect).skip_locked:
        pytest.skip("needs a server that fails in this way")
    failure = kind(second_engine)
    with failure.prepared():
        yield failure


@pytest.fixture(params=FAILURES)
def failure(request, second_engine):
    with made(request.param, second_engine) as failure:
        yield failure


@pytest.fixture
def survivor(request, second_engine):
    """A failure that leaves the connection alive."""
    with made(request.param, second_engine) as failure:
        yield failure


survivors = pytest.mark.parametrize(
    "survivor",
    [name for name, kind in FAILURES.items() if not kind.loses_connection],
    indirect=True,
)
passing = pytest.mark.parametrize(
    "survivor",
    [n for n, kind in FAILURES.items() if not (kind.loses_connection or kind.for_good)],
    indirect=True,
)


def session_commit(engine, failure):
    with pytest.raises(failure.error), JobSession(engine) as session:
        failure.ask(session)
        session.commit()


def plain_session_commit(engine, failure):
    with pytest.raises(failure.error), PlainSession(engine) as session:
        failure.ask(session)
        session.commit()


def session_begin(engine, failure):
    with pytest.raises(failure.error), JobSession(engine) as session, session.begin():
        failure.ask(session)


def close_without_rollback(engine, failure):
    session = JobSession(engine)
    failure.ask(session)
    with pytest.raises(failure.error):
        session.commit()
    session.close()


def commit_twice(engine, failure):
    session = JobSession(engine)
    failure.ask(session)
    with pytest.raises(failure.error):
        session.commit()
    with pytest.raises((DBAPIError, PendingRollbackError)):
        session.commit()
    session.close()


def core_begin(engine, failure):
    with pytest.raises(failure.error), engine.begin() as connection:
        failure.ask(connection)


def core_commit(engine, failure):
    with pytest.raises(failure.error), engine.connect() as connection:
        failure.ask(connection)
        connection.commit()


def core_close_without_rollback(engine, failure):
    connection = engine.connect()
    failure.ask(connection)
    with pytest.raises(failure.error):
        connection.commit()
    connection.close()


def session_on_a_connection(engine, failure):
    with (
        pytest.raises(failure.error),
        engine.begin() as connection,
        JobSession(connection) as session,
    ):
        failure.ask(session)
        session.commit()


WAYS = [
    session_commit,
    plain_session_commit,
    session_begin,
    close_without_rollback,
    commit_twice,
    core_begin,
    core_commit,
    core_close_without_rollback,
    session_on_a_connection,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_commit_that_fails_leaves_nothing(pool_of_one, second_engine, failure, way):
    with nothing_lasts(pool_of_one, second_engine):
        way(pool_of_one, failure)


@survivors
def test_the_session_goes_on_after_a_failed_commit(
    pool_of_one, second_engine, survivor
):
    """One rollback, as after any failed commit, and it works again."""
    with JobSession(pool_of_one) as session:
        survivor.ask(session)
        with pytest.raises(survivor.error):
            session.commit()
        session.rollback()
        session.add(Order(id=2, org_id=1))
        session.flush()
        session.commit()
    assert orders(second_engine) == [2]


def test_handles_of_a_failed_commit_are_not_written(pool_of_one, Session):
    with Session.begin() as session:
        session.enqueue(work, Work("there"))
    session = JobSession(pool_of_one)
    fine = session.enqueue(work, Work("fine"))
    new_id = fine.id
    refused = session.enqueue(work, Work("there"), on_duplicate="error")
    with pytest.raises(DuplicateJobError) as caught:
        session.commit()
    session.close()
    assert (caught.value.key, caught.value.state) == ("there", "ready")
    for handle in (fine, refused):
        with pytest.raises(NotWrittenError):
            _ = handle.outcome
    assert fine.id == new_id


# --- savepoints ------------------------------------------------------------------------


def test_a_write_that_fails_at_savepoint_dooms_the_transaction(
    pool_of_one, second_engine, failure
):
    """Swallowed or not: until a rollback that covers it, every commit raises it."""
    with nothing_lasts(pool_of_one, second_engine):
        session = JobSession(pool_of_one)
        failure.ask(session)
        with pytest.raises(failure.error), session.begin_nested():
            session.execute(text("SELECT 1"))
        with pytest.raises((failure.error, PendingRollbackError)):
            session.commit()
        session.close()


def test_a_connections_write_that_fails_at_savepoint_dooms_it(
    pool_of_one, second_engine, failure
):
    with nothing_lasts(pool_of_one, second_engine), pool_of_one.connect() as connection:
        failure.ask(connection)
        with pytest.raises(failure.error):
            connection.begin_nested()
        with pytest.raises((failure.error, PendingRollbackError)):
            connection.commit()


@passing
def test_an_outer_savepoint_covers_a_failure_at_an_inner_one(
    pool_of_one, second_engine, survivor
):
    with JobSession(pool_of_one) as session:
        session.enqueue(work, Work("before"))
        outer = session.begin_nested()
        survivor.ask(session)
        with pytest.raises(survivor.error), session.begin_nested():
            session.execute(text("SELECT 1"))
        outer.rollback()
        session.add(Order(id=2, org_id=1))
        session.commit()
    assert orders(second_engine) == [2]
    assert "before" in keys(second_engine)
    assert "healthy" not in keys(second_engine)


@passing
def test_a_write_that_fails_at_release_takes_its_savepoint_only(
    pool_of_one, second_engine, survivor
):
    with JobSession(pool_of_one) as session:
        session.add(Order(id=2, org_id=1))
        session.enqueue(work, Work("before"))
        with pytest.raises(survivor.error), session.begin_nested():
            survivor.ask(session)
        session.add(Order(id=3, org_id=1))
        session.commit()
    assert orders(second_engine) == [2, 3]
    assert set(keys(second_engine)) - {KEY} == {"before"}


@pytest.mark.needs("server")
def test_a_connection_lost_at_release_fails_the_commit(pool_of_one, second_engine):
    failure = FAILURES["terminated"](second_engine)
    with nothing_lasts(pool_of_one, second_engine):
        session = JobSession(pool_of_one)
        session.enqueue(work, Work("before"))
        with pytest.raises(DBAPIError), session.begin_nested():
            failure.ask(session)
        with pytest.raises(PendingRollbackError):
            session.commit()
        session.close()


# --- two-phase -------------------------------------------------------------------------


@pytest.fixture
def two_phase(second_engine):
    """Skip where the server was started without room for prepared transactions."""
    with second_engine.connect() as connection:
        if connection.scalar(text("SHOW max_prepared_transactions")) == "0":
            pytest.skip("max_prepared_transactions is 0 on this server")


@pytest.mark.needs("two_phase")
def test_a_write_that_fails_at_prepare_leaves_nothing(
    pool_of_one, second_engine, failure, two_phase
):
    with nothing_lasts(pool_of_one, second_engine):
        session = JobSession(pool_of_one, twophase=True)
        failure.ask(session)
        with pytest.raises(failure.error):
            session.commit()
        session.close()
    assert prepared(second_engine) == []


@pytest.mark.needs("two_phase")
def test_a_connections_write_that_fails_at_prepare_leaves_nothing(
    pool_of_one, second_engine, failure, two_phase
):
    with nothing_lasts(pool_of_one, second_engine), pool_of_one.connect() as connection:
        transaction = connection.begin_twophase()
        failure.ask(connection)
        with pytest.raises(failure.error):
            transaction.prepare()
        with pytest.raises((failure.error, PendingRollbackError, DBAPIError)):
            transaction.commit()
    assert prepared(second_engine) == []


@pytest.mark.needs("two_phase")
def test_a_commit_without_prepare_is_guarded_as_well(
    pool_of_one, second_engine, failure
):
    with nothing_lasts(pool_of_one, second_engine):
        connection = pool_of_one.connect()
        transaction = connection.begin_twophase()
        failure.ask(connection)
        with pytest.raises(failure.error):
            transaction.commit()
        connection.close()


def prepared(engine):
    with engine.connect() as connection:
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        return connection.scalars(text(query)).all()


# --- swallowed errors ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_a_swallowed_failure_of_write_jobs_fails_the_commit(
    pool_of_one, second_engine, failure, kind
):
    """Unless it was a refusal: that one leaves the transaction usable."""
    if isinstance(failure, FAILURES["refused"]):
        pytest.skip("a refusal leaves the transaction usable")
    with nothing_lasts(pool_of_one, second_engine):
        target = pool_of_one.connect() if kind == "connection" else None
        session = target if target is not None else JobSession(pool_of_one)
        failure.ask(session)
        with pytest.raises(failure.error):
            write_jobs(session)
        with pytest.raises((failure.error, PendingRollbackError)):
            session.commit()
        session.close()


def test_a_refusal_of_write_jobs_leaves_the_transaction_usable(
    pool_of_one, second_engine
):
    failure = FAILURES["refused"](second_engine)
    with failure.prepared(), JobSession(pool_of_one) as session:
        failure.ask(session)
        with pytest.raises(DuplicateJobError):
            session.write_jobs()
        session.enqueue(work, Work("after"))
        session.commit()
    assert keys(second_engine) == ["after", "healthy", KEY]
    assert orders(second_engine) == [1]


@pytest.mark.needs("aborts")
@pytest.mark.parametrize("early", ["write_jobs", "savepoint"])
@pytest.mark.parametrize("kind", ["session", "connection", "twophase"])
def test_a_swallowed_error_of_the_app_cannot_lose_written_jobs_silently(
    pool_of_one, second_engine, early, kind
):
    """PostgreSQL answers the COMMIT of an aborted transaction with a quiet ROLLBACK."""
    with nothing_lasts(pool_of_one, second_engine):
        if kind == "connection":
            target = pool_of_one.connect()
        else:
            target = JobSession(pool_of_one, twophase=kind == "twophase")
        enqueue(target, work, Work("a"))
        if early == "write_jobs":
            write_jobs(target)
        else:
            with target.begin_nested():
                target.execute(text("SELECT 1"))
        with contextlib.suppress(DBAPIError):
            target.execute(text("SELECT 1/0"))
        with pytest.raises(DBAPIError, match="aborted"):
            target.commit()
        target.close()


@pytest.mark.needs("server")
def test_a_swallowed_error_of_the_app_cannot_lose_an_early_cancel_silently(
    pool_of_one, second_engine
):
    with JobSession(second_engine) as session, session.begin():
        handle = session.enqueue(work, Work("a"))
    with JobSession(pool_of_one) as session:
        cancel_job(session, handle.id)
        session.write_jobs()
        with contextlib.suppress(DBAPIError):
            session.execute(text("SELECT 1/0"))
        with pytest.raises(DBAPIError, match="aborted"):
            session.commit()
    assert stored(second_engine, "a").state == "ready"


# --- interrupted -----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["write", "hint"])
@pytest.mark.parametrize("kind", ["session", "connection"])
def test_an_interrupt_in_the_last_statements_leaves_nothing(
    pool_of_one, second_engine, monkeypatch, where, kind
):
    """Ctrl-C in the write itself, and in what comes between it and the COMMIT."""

    def interrupt(*args):
        raise KeyboardInterrupt

    target = pool_of_one.connect() if kind == "connection" else JobSession(pool_of_one)
    with nothing_lasts(pool_of_one, second_engine):
        target.execute(insert(Order).values(id=1, org_id=1))
        enqueue(target, work, Work("a"))
        if where == "write":
            event.listen(pool_of_one, "before_cursor_execute", interrupt)
        else:
            monkeypatch.setattr(wakeup, "committing", interrupt)
        with pytest.raises(KeyboardInterrupt):
            target.commit()
        if where == "write":
            event.remove(pool_of_one, "before_cursor_execute", interrupt)
        monkeypatch.undo()
        target.close()
