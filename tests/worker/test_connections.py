"""What a worker does when its connections, or the server, go away."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import JobSession, Worker, inspect
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.models import metadata
from tests.support.processes import Processes
from tests.support.proxy import Proxy, proxied
from tests.support.server import Server, conninfo, embedded
from tests.support.shop import Base
from tests.support.waiting import wait_until
from tests.worker import app
from tests.worker.conftest import Queue

RESUMED = 10.0
"""Seconds in which workers are at work again after the server is."""
LISTEN = b"listen "
BEAT = b"update sqla_worker"

BACKENDS = text(
    "select pid from pg_stat_activity where datname = current_database()"
    " and pid <> pg_backend_pid() and backend_type = 'client backend'"
)


@pytest.fixture(scope="module")
def own() -> Server:
    """A server of this module's own, which may be stopped and restarted."""
    # Durable: what was committed must not be lost with the crash.
    with embedded(18, durable=True) as server:
        yield server


@pytest.fixture
def own_url(own) -> URL:
    with own.connect() as admin:
        admin.execute("drop database if exists own with (force)")
        admin.execute("create database own")
    url = own.database("own")
    engine = create_engine(url)
    metadata.create_all(engine)
    Base.metadata.create_all(engine)
    engine.dispose()
    return url


@pytest.fixture
def own_queue(own_url, monkeypatch) -> Queue:
    """The queue on the module's own server."""
    raw = own_url.render_as_string(hide_password=False)
    monkeypatch.setenv("SQLA_JOBS_DATABASE_URL", raw)
    app.side.cache_clear()
    # The server goes away under the test's own connections as well.
    engine = create_engine(own_url, pool_pre_ping=True)
    yield Queue(engine)
    engine.dispose()
    if app.side.cache_info().currsize:
        app.side().dispose()
    app.side.cache_clear()


@pytest.fixture
def own_worker(own_url):
    """Start a worker beside the test, on the module's own server."""
    with ExitStack() as stack:

        def start(url=own_url, **options) -> Worker:
            engine = create_engine(url)
            stack.callback(engine.dispose)
            async_engine = create_async_engine(url)
            stack.callback(lambda: asyncio.run(async_engine.dispose()))
            options = {
                "grace": "1s",
                "session": sessionmaker(engine, class_=JobSession),
                "async_session": async_sessionmaker(
                    async_engine, class_=AsyncJobSession
                ),
                **options,
            }
            return stack.enter_context(Worker(app.jobs, **options))

        yield start


@pytest.fixture
def own_spawn(own_queue, own_url):
    """Start a worker in a process, on the module's own server."""
    raw = own_url.render_as_string(hide_password=False)
    with Processes({"SQLA_JOBS_DATABASE_URL": raw}) as processes:

        def spawn(**options):
            child = processes.call(app.run_worker, {"grace": "1s", **options})
            child.wait_for_line("worker .* started")
            return child

        yield spawn


def hearing(queue):
    """Return for each live worker whether it hears notifications."""
    with Session(queue.look) as session:
        return [w.listening for w in inspect.workers(session) if w.alive]


def wait_for_hearing(queue, timeout=RESUMED, count=1):
    wait_until(lambda: hearing(queue) == [True] * count, timeout, what="hearing")


# --- the server ----------------------------------------------------------------------


@pytest.mark.covers("T50")
def test_t50_workers_resume_by_themselves_after_the_server_crashed(
    own, own_queue, own_spawn
):
    """An immediate restart while jobs run: nothing is lost, the listener is back too."""
    (held,) = own_queue.add(app.hold, "held")
    workers = [own_spawn(queues={"default": 2}) for _ in range(2)]
    own_queue.wait_for_visits(1)
    wait_for_hearing(own_queue, count=2)
    own.control.restart("immediate")
    began = time.monotonic()
    own_queue.add(app.noop, *[f"{n}" for n in range(20)])
    wait_until(lambda: own_queue.states().get("succeeded") == 20, RESUMED)
    wait_for_hearing(own_queue, RESUMED - (time.monotonic() - began), count=2)
    own_queue.go()
    own_queue.wait_for_states(succeeded=21)
    # The lease held: it is the same attempt, unless its own statement was cut.
    assert own_queue.job(held).attempt <= 2
    for worker in workers:
        assert "Traceback" not in worker.output
        worker.terminate()
        assert worker.wait() == 0


@pytest.mark.covers("T50")
def test_t50_an_outage_longer_than_the_lease_ends_in_new_identities(
    own, own_queue, own_spawn
):
    """The worker fences itself meanwhile; then its job runs again, once."""
    (job_id,) = own_queue.add(app.hold_long, "x")
    worker = own_spawn(lease_ttl="2s")
    own_queue.wait_for_visits(1)
    own.control.stop("immediate")
    try:
        worker.wait_for_line("has lost its lease")
    finally:
        own.control.start()
    began = time.monotonic()
    own_queue.add(app.visit, "y")
    wait_until(lambda: ("y", 1) in own_queue.visits(), RESUMED)
    own_queue.wait_for_visits(3)  # A rescuer looks every few seconds.
    own_queue.go()
    own_queue.wait_for_states(succeeded=2)
    assert own_queue.history(job_id) == ["lost"]
    wait_for_hearing(own_queue, RESUMED - (time.monotonic() - began))
    assert "Traceback" not in worker.output


@pytest.mark.covers("T50")
def test_t50_a_server_that_takes_no_writes_any_more_is_left(
    own, own_queue, own_worker, monkeypatch
):
    """A demoted primary answers 25006: the pools are dropped, and the worker waits."""
    worker = own_worker()
    own_queue.add(app.visit, "before")
    own_queue.wait_for_states(succeeded=1)
    before = {*pids(own_queue)}
    read_only(own, on=True)
    # Sessions that are there keep what they began with: end them, once.
    kill_all(own_queue)
    wait_until(lambda: worker._parts.heartbeat.failing, what="a refused beat")
    read_only(own, on=False)
    began = time.monotonic()
    own_queue.add(app.visit, "after")
    own_queue.wait_for_states(RESUMED, succeeded=2)
    wait_for_hearing(own_queue, RESUMED - (time.monotonic() - began))
    assert before.isdisjoint(pids(own_queue))


@pytest.mark.covers("C06")
def test_c06_a_read_only_server_is_refused_at_start(own, own_queue, own_worker):
    from sqla_jobs.exc import DatabaseUnavailableError

    read_only(own, on=True)
    try:
        with pytest.raises(DatabaseUnavailableError, match="read-only"):
            own_worker()
    finally:
        read_only(own, on=False)


def read_only(own, *, on):
    with own.connect() as admin:
        admin.execute("set default_transaction_read_only = off")
        admin.execute(
            "alter database own set default_transaction_read_only = "
            + ("on" if on else "off")
        )


def pids(queue):
    with queue.look.connect() as connection:
        return connection.scalars(BACKENDS).all()


def kill_all(queue):
    with queue.look.connect() as connection:
        connection.execute(
            text(f"select pg_terminate_backend(pid) from ({BACKENDS.text}) as b")
        )


# --- backends ------------------------------------------------------------------------


@pytest.mark.covers("T03")
def test_t03_each_of_the_engines_connections_may_be_killed_in_turn(
    queue, start, engine
):
    """Claimer, settler, heartbeat, listener, rescuer, handlers: nothing is lost."""
    worker = start(queues={"default": 5})
    expected = 0
    killed = 0
    for round_ in range(3):
        names = [f"{round_}:{n}" for n in range(30)]
        queue.add(app.visit, *names)
        for pid in pids(queue):
            with queue.look.connect() as connection:
                connection.execute(
                    text("select pg_terminate_backend(:pid)"), {"pid": pid}
                )
            killed += 1
            queue.add(app.noop, f"{round_}:after:{pid}")
            expected += 1
        expected += len(names)
        queue.wait_for_states(20.0, succeeded=expected)
    assert killed >= 12
    visits = queue.visits()
    # Effects of attempts that were cut are not there: each name has one.
    assert len({name for name, _ in visits}) == len(visits) == 90
    wait_until(worker._parts.listener.healthy, RESUMED)


# --- a network that says nothing -----------------------------------------------------


@pytest.fixture
def proxy(pg_url) -> Proxy:
    with proxied(pg_url) as proxy:
        yield proxy


@pytest.fixture
def through(proxy, start):
    """Start a worker whose connections go through the proxy."""
    with ExitStack() as stack:

        def through(**options):
            engine = create_engine(proxy.url)
            stack.callback(engine.dispose)
            session = sessionmaker(engine, class_=JobSession)
            return start(session=session, **options)

        yield through


@pytest.mark.covers("T51")
def test_t51_a_half_open_listener_is_noticed_and_polling_takes_over(
    queue, through, proxy
):
    """Its packets vanish: no error, no end of the connection."""
    worker = through(poll_interval="250ms")
    wait_until(worker._parts.listener.healthy)
    wait_until(lambda: worker.stats.listening)
    wait_for_hearing(queue)
    proxy.swallow(LISTEN)
    began = time.monotonic()
    assert proxy.mute(LISTEN) == 1
    wait_until(lambda: not worker.stats.listening, 15.0)
    assert time.monotonic() - began <= 15.0
    wait_until(lambda: hearing(queue) == [False], 2.0, what="seen by inspect")
    begun = time.monotonic()
    queue.add(app.visit, "polled")
    queue.wait_for_states(succeeded=1)
    assert time.monotonic() - begun < 2.0
    # The network is back: another connection is made by itself.
    proxy.forward()
    wait_for_hearing(queue, 15.0)


@pytest.mark.covers("T05")
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_t05_lost_beats_within_the_lease_cost_nothing(queue, through, proxy, lost):
    """Each is given up in time for another one, and nobody takes the job."""
    (job_id,) = queue.add(app.hold, "x")
    worker = through(lease_ttl="9s")
    queue.wait_for_visits(1)
    lease = worker._parts.heartbeat.lease
    proxy.swallow(BEAT, times=lost)
    wait_until(lambda: proxy.lost == lost, 15.0)
    until = lease.until
    wait_until(lambda: lease.until > until, 8.0, what="renewed")
    assert not lease.lost
    assert worker._parts.heartbeat.lease is lease
    queue.go()
    queue.wait_for_states(succeeded=1)
    assert queue.history(job_id) == []


@pytest.mark.covers("T05")
def test_t05_past_the_lease_the_worker_fences_itself_before_others_take_over(
    queue, through, proxy, start
):
    (job_id,) = queue.add(app.hold_long, "x")
    worker = through(lease_ttl="4s")
    queue.wait_for_visits(1)
    lease = worker._parts.heartbeat.lease
    attempt = worker._parts.attempts.live()[0]
    # The other end of the job's life: what the fleet would do.
    start(lease_ttl="4s")
    proxy.swallow(BEAT)
    wait_until(lambda: attempt.state.abort is not None, 10.0, what="fenced")
    assert lease.lost
    assert queue.job(job_id).fence == 1, "still this worker's, in the database"
    queue.wait_for_visits(2)
    assert queue.history(job_id) == ["lost"]
    queue.go()
    queue.wait_for_states(succeeded=1)
    # It starts again, under another id, once the network is back.
    proxy.forward()
    wait_until(lambda: worker._parts.heartbeat.lease.valid, RESUMED)


def test_a_claim_whose_answer_the_network_lost_is_given_up(
    queue, through, proxy, monkeypatch
):
    monkeypatch.setattr("sqla_jobs.worker.engine.PATIENCE", 1.0)
    worker = through()
    wait_until(lambda: worker.stats.claims > 0)
    proxy.swallow(b"sqla_job", times=1)
    queue.add(app.visit, "x")
    wait_until(lambda: proxy.lost == 1)
    queue.wait_for_states(succeeded=1)


def test_our_connects_are_impatient_and_the_applications_are_not(pg_url):
    """And what the application says itself is kept."""
    from sqla_jobs.dialects import dialect_named
    from sqla_jobs.queue.connections import own_engine

    theirs = create_engine(pg_url, connect_args={"keepalives_idle": 77})
    ours = own_engine(theirs)
    try:
        with dialect_named(ours.dialect).impatient(), ours.connect() as connection:
            mine = connection.connection.driver_connection.info.get_parameters()
        with theirs.connect() as connection:
            plain = connection.connection.driver_connection.info.get_parameters()
    finally:
        theirs.dispose()
        ours.dispose()
    assert mine["keepalives_idle"] == "77"
    assert mine["tcp_user_timeout"] == "15000"
    assert mine["connect_timeout"] == "5"
    assert plain["keepalives_idle"] == "77"
    assert "tcp_user_timeout" not in plain
    assert "connect_timeout" not in plain


# --- a server without room -----------------------------------------------------------


@pytest.mark.covers("T57")
@pytest.mark.timeout(180)
def test_t57_a_full_server_is_waited_for_and_the_lease_is_kept(
    own, own_queue, own_spawn
):
    """Every connection is taken: who has one keeps it, the others wait."""
    import psycopg

    (job_id,) = own_queue.add(app.nap, "x", seconds=8.0)
    worker = own_spawn(lease_ttl="4s")
    own_queue.wait_for_visits(1)
    wait_for_hearing(own_queue)
    taken = []
    try:
        # As an ordinary role: places are reserved for the superuser that we are.
        with own.connect() as admin:
            admin.execute("drop role if exists crowd")
            admin.execute("create role crowd login")
        crowd = conninfo(own.database("own").set(username="crowd"))
        with pytest.raises(psycopg.OperationalError):
            while True:
                taken.append(psycopg.connect(crowd))
        assert len(taken) > 100
        own_queue.wait_for_states(20.0, succeeded=1)
    finally:
        for connection in taken:
            connection.close()
    assert own_queue.visits() == [("x", 1)]
    assert own_queue.history(job_id) == []
    assert "lost its lease" not in worker.output
