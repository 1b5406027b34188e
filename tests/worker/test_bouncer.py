"""Everything but push through PgBouncer in transaction mode, where it is installed."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import JobSession, cancel_job, inspect
from tests.support.bouncer import PROGRAM, bouncer
from tests.support.waiting import wait_until
from tests.worker import app

pytestmark = [
    pytest.mark.covers("T51", "T54", "C109"),
    pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed"),
]

# Psycopg's own statements would be prepared by name, which such a pooler loses: what an
# application behind one sets for itself.
PLAIN = {"prepare_threshold": None}
SETTINGS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
OF_SERVER = text("select " + ", ".join(f"current_setting('{n}')" for n in SETTINGS))


@pytest.fixture
def bounced(pg_url):
    with bouncer(pg_url) as url:
        yield url


@pytest.fixture
def through(bounced, start):
    """Start a worker all of whose connections go through the pooler."""
    with ExitStack() as stack:

        def through(**options):
            engine = create_engine(bounced, connect_args=PLAIN)
            stack.callback(engine.dispose)
            session = sessionmaker(engine, class_=JobSession)
            return start(session=session, **options)

        yield through


@pytest.fixture
def far(bounced):
    """Sessions of the application through the pooler."""
    engine = create_engine(bounced, connect_args=PLAIN)
    yield sessionmaker(engine, class_=JobSession)
    engine.dispose()


def add(far, spec, *names):
    with far.begin() as session:
        handles = [session.enqueue(spec, app.Do(name)) for name in names]
    return [handle.id for handle in handles]


def test_jobs_of_all_kinds_end_as_they_should(queue, through, far, caplog):
    worker = through(poll_interval="200ms", queues={"default": 8})
    add(far, app.visit, *[f"v{n}" for n in range(50)])
    add(far, app.visit_async, *[f"a{n}" for n in range(50)])
    add(far, app.fail, "failing")
    (held,) = add(far, app.hold, "held")
    queue.wait_for_states(succeeded=100, dead=1, running=1)
    with far.begin() as session:
        cancel_job(session, held)
    # The handler sees it with the next beat, and returns: that is a success.
    queue.wait_for_states(succeeded=101, dead=1)
    assert worker.stats.stale == 0
    # Notifications are lost in there: it knows, says so once, and polls.
    wait_until(lambda: worker._parts.listener._failures > 1, 30.0)
    said = " ".join(r.getMessage() for r in caplog.records)
    assert said.count("give listen_url") == 1
    assert "prepared statement" not in said
    assert worker.stats.listening is False

    def told():
        with Session(queue.look) as session:
            return [w.listening for w in inspect.workers(session)] == [False]

    wait_until(told)


def test_no_setting_is_left_behind_in_a_server_connection(queue, through, far, engine):
    """SET LOCAL ends with its transaction; anything longer would be somebody else's."""
    through(poll_interval="200ms")
    add(far, app.visit, *[f"{n}" for n in range(50)])
    queue.wait_for_states(succeeded=50)
    with queue.look.connect() as connection:
        plain = connection.execute(OF_SERVER).one()
        session_locks = text(
            "select count(*) from pg_locks where locktype = 'advisory'"
            " and database = (select oid from pg_database"
            "                  where datname = current_database())"
        )
        assert connection.scalar(session_locks) == 0
    # More transactions at a time than server connections: each of those is asked.
    with ExitStack() as stack:
        for _ in range(4):
            session = stack.enter_context(far())
            assert session.execute(OF_SERVER).one() == plain


def test_a_direct_url_for_listening_brings_push_back(queue, through, far, pg_url):
    worker = through(listen_url=pg_url, poll_interval="60s")
    wait_until(worker._parts.listener.healthy)
    wait_until(lambda: worker.stats.claims > 0)
    add(far, app.visit, "pushed")
    queue.wait_for_states(3.0, succeeded=1)
    assert worker.stats.listening is True
