"""What goes wrong around a worker: rights, locks, poison, notifications, connections."""

from __future__ import annotations

import contextlib
import resource
import threading
import time

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from sqla_jobs import Jobs, Retry
from sqla_jobs.exc import (
    DatabaseUnavailableError,
    SchemaVersionError,
    WorkerStuckError,
)
from sqla_jobs.models import Attempt
from sqla_jobs.queue.claim import claim, next_due
from sqla_jobs.queue.settle import settle
from sqla_jobs.worker import claimer, settler, watchdog
from sqla_jobs.worker.errors import MAX_BYTES
from sqla_jobs.worker.listener import Listener
from tests.support.waiting import wait_until
from tests.worker import app
from tests.worker.test_shutdown import away

pytestmark = pytest.mark.each_kind


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def locked_table(engine):
    with engine.connect() as connection:
        connection.execute(text("lock table sqla_job in access exclusive mode"))
        yield
        connection.rollback()


@contextlib.contextmanager
def revoked(engine):
    """Every function the statements call is out of reach for everybody but us."""
    with engine.begin() as connection:
        connection.execute(text("alter table sqla_job rename to sqla_job_away"))
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(text("alter table sqla_job_away rename to sqla_job"))


@pytest.mark.needs("server")
@pytest.mark.covers("T56")
@pytest.mark.parametrize("trouble", ["locked", "refused", "away"])
def test_t56_a_worker_in_trouble_does_not_spin_and_recovers(
    queue, start, engine, databases, trouble, caplog
):
    """A table that is locked, statements that are refused, a database that is away."""
    worker = start(lease_ttl="60s")
    queue.add(app.noop, "before")
    queue.wait_for_states(succeeded=1)
    engine.dispose()
    around = {
        "locked": lambda: locked_table(engine),
        "refused": lambda: revoked(engine),
        "away": lambda: away(databases, engine.url.database),
    }[trouble]
    with around():
        used, begun = cpu(), time.monotonic()
        # Whatever is said to it, the number of tries follows the clock.
        while time.monotonic() - begun < 4.0:
            worker._parts.claimer.look()
            time.sleep(0.05)
        share = (cpu() - used) / (time.monotonic() - begun)
    assert share < 0.05 + 0.03  # the loop of this test takes its part
    asked = len([r for r in caplog.records if "claimer failed" in r.getMessage()])
    assert asked <= 2
    queue.add(app.noop, "after")
    queue.wait_for_states(succeeded=2)


@pytest.mark.covers("T58")
def test_t58_poison_fails_alone_and_its_batch_mates_are_settled(queue, start):
    jobs = Jobs()
    bodies = {
        "huge": ValueError("x" * 10_000_000),
        "nul": ValueError("a\x00b"),
        "surrogate": ValueError("\ud800"),
        "exit": SystemExit(7),
    }
    outputs = {"set": {1}, "nan": float("nan"), "big": 2**63 + 1, "nul out": "\x00"}

    @jobs.job("poison", **app.options(retry=Retry(attempts=1)))
    def poison(ctx, do):
        if do.name in bodies:
            raise bodies[do.name]
        return outputs.get(do.name)

    mates = [f"{n}" for n in range(100)]
    ids = queue.add(poison, *mates[:50], *bodies, *outputs, *mates[50:])
    names = dict(zip([*mates[:50], *bodies, *outputs, *mates[50:]], ids, strict=True))
    start(jobs, async_session=None, queues={"default": 50})
    queue.wait_for_states(dead=7, succeeded=101)
    assert queue.job(names["big"]).state == "succeeded"
    for name in [*bodies, "set", "nan", "nul out"]:
        (attempt,) = queue.attempts(names[name])
        assert attempt.outcome == "dead"
        assert 0 < len(attempt.error.encode()) <= MAX_BYTES
    with Session(queue.look) as session:
        types = session.scalars(select(Attempt.error_type).distinct()).all()
    assert set(types) == {"ValueError", "SystemExit", "PayloadError"}


@pytest.mark.needs("server")
def test_a_result_the_database_refuses_is_cut_out_of_its_batch(queue, start, engine):
    """A constraint stands for whatever a server may not take."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "alter table sqla_job_output add constraint no_thirteen"
                " check (cast(output as text) <> '13')"
            )
        )
    jobs = Jobs()

    @jobs.job("number", **app.options(retry=Retry(attempts=1)))
    def number(ctx, do) -> int:
        return int(do.name)

    ids = queue.add(number, *[f"{n}" for n in range(40)])
    start(jobs, async_session=None, queues={"default": 40})
    queue.wait_for_states(dead=1, succeeded=39)
    (attempt,) = queue.attempts(ids[13])
    assert "no_thirteen" in attempt.error


@pytest.mark.needs("skip_locked")
def test_a_job_row_that_somebody_holds_does_not_hold_up_the_others(
    queue, start, engine
):
    """An open cancel_job, for example."""
    held, *_ = queue.add(app.hold, "held", "b", "c")
    worker = start()
    queue.wait_for_visits(3)
    with engine.connect() as connection:
        connection.execute(
            text("select 1 from sqla_job where id = :id for update"), {"id": held}
        )
        queue.go()
        queue.wait_for_states(succeeded=2, running=1)
        wait_until(lambda: worker._parts.settler.backlog == 1)
        connection.rollback()
    queue.wait_for_states(succeeded=3)
    assert worker.stats.stale == 0


@pytest.mark.needs("server")
@pytest.mark.covers("C110")
def test_c110_nothing_waits_for_the_poll_while_listeners_restart(queue, start, engine):
    """Enqueued in a tight loop while the listener's connection is cut again and again."""
    worker = start(poll_interval="60s")
    end = threading.Event()
    delays = []
    listeners = text(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and query ilike any"
        " (array['listen %', 'select pg_notify%']) and pid <> pg_backend_pid()"
    )

    def cut():
        with queue.look.connect() as connection:
            while not end.wait(0.3):
                connection.execute(listeners)

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        for number in range(60):
            begun = time.monotonic()
            queue.add(app.noop, f"{number}")
            wait_until(lambda n=number: worker.stats.succeeded == n + 1, 15.0)
            delays.append(time.monotonic() - begun)
    finally:
        end.set()
        cutter.join()
    # A reconnect takes a few tenths of a second (it backs off), and then it looks.
    assert max(delays) < 5.0, sorted(delays)[-5:]


@pytest.mark.covers("C110")
def test_c110_polling_is_quick_until_notifications_are_proven(
    queue, start, monkeypatch
):
    """Behind a pooler the echo never comes back."""

    def swallow(self, connection):
        assert list(connection.notifies(timeout=0)) is not None
        return 0

    monkeypatch.setattr(Listener, "_drain", swallow)
    start(poll_interval="200ms")
    queue.add(app.visit, "a")
    queue.wait_for_visits(1, timeout=3.0)


def test_a_look_that_failed_is_made_up_for_without_any_hint(queue, start, monkeypatch):
    failed = []

    def swallow(self, connection):
        assert list(connection.notifies(timeout=0)) is not None
        return 0

    def fails_twice(*given, **more):
        if len(failed) < 2:
            failed.append(1)
            raise ConnectionError("away")
        return next_due(*given, **more)

    monkeypatch.setattr(Listener, "_drain", swallow)
    monkeypatch.setattr(claimer, "next_due", fails_twice)
    start(poll_interval="200ms")
    wait_until(lambda: len(failed) == 2)
    queue.add(app.visit, "a")
    queue.wait_for_visits(1, timeout=3.0)


def test_a_process_with_too_many_stuck_threads_ends_to_be_replaced(
    queue, start, monkeypatch
):
    """Until then each is replaced, so that its queue keeps its room."""
    monkeypatch.setattr(watchdog, "STUCK_FOR", 1.0)
    worker = start(queues={"default": 5})
    worker.stop()
    raised = []

    def run():
        try:
            worker.run()
        except WorkerStuckError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    queue.add(app.slow, *[f"{n}" for n in range(5)])
    thread.join(30.0)
    assert not thread.is_alive()
    assert raised[0].stuck >= 5
    queue.go()


def test_missing_tables_are_refused_at_start(start, empty_url, monkeypatch):
    from sqlalchemy import create_engine
    from sqlalchemy.orm import sessionmaker

    from sqla_jobs import JobSession

    engine = create_engine(empty_url)
    with pytest.raises(SchemaVersionError, match="db ddl"):
        start(session=sessionmaker(engine, class_=JobSession))
    engine.dispose()


@pytest.mark.needs("server")
def test_a_read_only_database_is_refused_at_start(queue, start, engine):
    with engine.begin() as connection:
        name = engine.url.database
        connection.execute(
            text(f'alter database "{name}" set default_transaction_read_only = on')
        )
    engine.dispose()
    with pytest.raises(DatabaseUnavailableError, match="read-only"):
        start()


def test_a_database_that_does_not_answer_is_said_so(start, make_engine, pg_url):
    from sqlalchemy import create_engine
    from sqlalchemy.orm import sessionmaker

    from sqla_jobs import JobSession

    engine = create_engine(pg_url.update_query_dict({"host": "/nowhere"}))
    with pytest.raises(DatabaseUnavailableError, match="Check the URL"):
        start(session=sessionmaker(engine, class_=JobSession))
    engine.dispose()


def test_a_worker_that_has_become_too_old_drains_and_stops(queue, spawn, engine):
    queue.add(app.nap, "x", seconds=1.0)
    worker = spawn(lease_ttl="1s", grace="10s")
    queue.wait_for_visits(1)
    with engine.begin() as connection:
        connection.execute(text("update sqla_meta set min_code_version = 99"))
    worker.wait_for_line("draining and stopping: the tables need code version 99")
    assert worker.wait() == 0
    assert queue.states() == {"succeeded": 1}


def test_a_claim_whose_answer_is_lost_gives_its_jobs_back(queue, start, monkeypatch):
    """They would run under a lease that holds, and nobody would run them."""
    answers = []

    def lost(*given, **more):
        claimed = claim(*given, **more)
        if claimed and not answers:
            answers.append(claimed)
            raise ConnectionError("the answer was lost")
        return claimed

    monkeypatch.setattr(claimer, "claim", lost)
    ids = queue.add(app.visit, *[f"{n}" for n in range(5)])
    worker = start()
    queue.wait_for_states(succeeded=5)
    assert len(answers[0]) == 5
    assert [(queue.job(i).attempt, queue.job(i).fence) for i in ids] == [(1, 2)] * 5
    wait_until(lambda: worker.stats.released == 5)
    room = worker._parts.rooms["default"]
    wait_until(lambda: room.claimed == room.settled)


def test_a_settle_whose_answer_is_lost_is_counted_once(queue, start, monkeypatch):
    lost = []

    def settle_once(*given, **more):
        accepted = settle(*given, **more)
        if not lost:
            lost.append(accepted)
            raise ConnectionError("the answer was lost")
        return accepted

    monkeypatch.setattr(settler, "settle", settle_once)
    queue.add(app.noop, *[f"{n}" for n in range(5)])
    worker = start()
    queue.wait_for_states(succeeded=5)
    wait_until(lambda: worker.stats.succeeded == 5)
    assert lost
    assert worker.stats.stale == 0
    room = worker._parts.rooms["default"]
    assert room.claimed == room.settled == 5


@pytest.mark.needs("server")
def test_a_death_whose_telling_the_database_refuses_is_recorded(queue, start, engine):
    with engine.begin() as connection:
        connection.execute(
            text(
                "alter table sqla_job add constraint nobody_is_told"
                " check (name <> 'report')"
            )
        )
    (job_id,) = queue.add(app.mourned, "x")
    start()
    queue.wait_for_states(dead=1)
    assert queue.history(job_id) == ["dead"]
