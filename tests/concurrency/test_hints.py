"""Wake-up hints: after every commit that has work, never after a rollback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading

import pytest
from sqlalchemy import create_engine, func, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session as PlainSession

from sqla_jobs import JobSession, enqueue, write_jobs
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.models import Job
from sqla_jobs.queue.wakeup import channel
from tests.support.enqueuing import Work, keys, other, work
from tests.support.hints import Hints
from tests.support.shop import Order
from tests.support.waiting import wait_until


@pytest.fixture
def hints(pg_url):
    with Hints(pg_url) as hints:
        yield hints


def test_a_session_that_commits_wakes_workers_of_its_queues(Session, hints):
    with Session() as session:
        session.enqueue(work, Work("a"))
        session.enqueue(other, Work("a"))
        session.commit()
        # The session is still open, its connection may be anywhere.
        heard = []
        wait_until(
            lambda: heard.extend(hints.heard(0.05)) or {"default", "other"} <= {*heard}
        )


def test_a_commit_that_the_session_reports_is_hinted_at_once_and_once(
    Session, hints, engine
):
    with Session.begin() as session:
        session.enqueue(work, Work("a"))
    assert hints.until_quiet(engine) == ["default"]


def test_a_connection_that_commits_wakes_when_it_comes_back(engine, hints):
    with engine.begin() as connection:
        enqueue(connection, work, Work("a"))
    assert hints.until_quiet(engine) == ["default"]


def test_a_connection_that_commits_and_goes_on_wakes(engine, hints):
    with engine.connect() as connection:
        enqueue(connection, work, Work("a"))
        connection.commit()
        connection.execute(text("SELECT 1"))
        hints.wait_for("default")


def test_a_connection_that_commits_and_idles_wakes(engine, hints):
    """Nobody tells that its COMMIT is through: time does."""
    with engine.connect() as connection:
        enqueue(connection, work, Work("a"))
        connection.commit()
        hints.wait_for("default")


@pytest.mark.parametrize("mode", ["conditional_savepoint", "create_savepoint"])
def test_an_external_transaction_wakes_after_its_own_commit(engine, hints, mode):
    with engine.connect() as connection, connection.begin():
        with JobSession(connection, join_transaction_mode=mode) as session:
            session.enqueue(work, Work("a"))
            session.commit()
        with Hints(engine.url) as early:
            assert early.until_quiet(engine) == []
    hints.wait_for("default")


def test_two_phase_commits_wake(engine, hints):
    with JobSession(engine, twophase=True) as session:
        session.enqueue(work, Work("a"))
        session.prepare()
        with Hints(engine.url) as early:
            assert early.until_quiet(engine) == []
        session.commit()
    hints.wait_for("default")


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_async_sessions_wake(pg_url, hints, driver):
    async def main():
        engine = create_async_engine(pg_url.set(drivername=f"postgresql+{driver}"))
        async with AsyncJobSession(engine) as session, session.begin():
            session.enqueue(work, Work("a"))
        await engine.dispose()

    asyncio.run(main())
    hints.wait_for("default")


def test_a_rerun_wakes_and_a_kept_duplicate_does_not(Session, hints, engine):
    with Session.begin() as session:
        session.enqueue(other, Work("a"))
    hints.wait_for("other")
    with Session.begin() as session:
        session.enqueue(other, Work("a"))
    assert hints.until_quiet(engine) == []
    with Session.begin() as session:
        session.enqueue(other, Work("a"), on_duplicate="rerun")
    assert hints.until_quiet(engine) == ["other"]


def test_a_job_of_the_far_future_wakes_nobody(Session, hints, engine):
    with Session.begin() as session:
        session.enqueue(work, Work("a"), delay="1h")
    assert hints.until_quiet(engine) == []


def test_jobs_beside_a_refused_one_wake_when_they_are_committed(Session, hints):
    with Session.begin() as session:
        session.enqueue(other, Work("there"))
    hints.wait_for("other")
    with Session() as session:
        session.enqueue(work, Work("a"))
        session.enqueue(other, Work("there"), on_duplicate="error")
        with contextlib.suppress(Exception):
            session.write_jobs()
        session.commit()
    hints.wait_for("default")


# --- never after a rollback ------------------------------------------------------------


def roll_back(session):
    session.enqueue(work, Work("a"))
    session.write_jobs()
    session.rollback()


def close(session):
    session.enqueue(work, Work("a"))
    session.write_jobs()
    session.enqueue(work, Work("b"))
    session.close()


def savepoint(session):
    nested = session.begin_nested()
    session.enqueue(other, Work("a"))
    session.write_jobs()
    nested.rollback()
    session.rollback()


def refused(session):
    with PlainSession(session.get_bind()) as elsewhere, elsewhere.begin():
        enqueue(elsewhere, work, Work("there"), delay="1h")
    session.enqueue(work, Work("a"))
    session.enqueue(work, Work("there"), on_duplicate="error")
    with contextlib.suppress(Exception):
        session.commit()
    session.close()


def serialization(session):
    """The COMMIT itself fails, after the hint was prepared."""
    engine = session.get_bind().execution_options(isolation_level="SERIALIZABLE")
    with PlainSession(engine) as setup, setup.begin():
        setup.add_all([Order(id=1, org_id=1), Order(id=2, org_id=1)])
    one, two = JobSession(engine), JobSession(engine)
    for each, mine, its in ((one, 1, 2), (two, 2, 1)):
        each.get_one(Order, its)
        each.execute(update(Order).where(Order.id == mine).values(org_id=2))
    two.enqueue(work, Work("a"))
    two.write_jobs()
    one.commit()
    with pytest.raises(DBAPIError):
        two.commit()
    two.rollback()
    one.close()
    two.close()


@pytest.mark.covers("T29")
@pytest.mark.parametrize(
    "way",
    [roll_back, close, savepoint, refused, serialization],
    ids=lambda way: way.__name__,
)
def test_what_is_rolled_back_wakes_nobody(Session, hints, engine, way):
    session = Session()
    way(session)
    assert hints.until_quiet(engine) == []
    session.close()
    assert "a" not in keys(engine)


def test_a_rolled_back_savepoint_wakes_nobody_when_the_rest_commits(
    Session, hints, engine
):
    with Session() as session:
        session.enqueue(work, Work("a"))
        nested = session.begin_nested()
        session.enqueue(other, Work("b"))
        with session.begin_nested():
            session.enqueue(other, Work("c"))
        nested.rollback()
        session.commit()
    assert hints.until_quiet(engine) == ["default"]


# --- how they are sent -----------------------------------------------------------------


@pytest.mark.covers("T53")
def test_the_last_enqueue_of_a_burst_always_wakes_somebody(engine, hints):
    """A worker that looks only when it is told to finds every job in the end."""
    threads, each = 8, 40
    engine = create_engine(engine.url, pool_size=threads)

    def enqueue_all(number):
        for n in range(each):
            with PlainSession(engine) as session, session.begin():
                enqueue(session, work, Work(f"{number}:{n}"))

    running = [
        threading.Thread(target=enqueue_all, args=(number,))
        for number in range(threads)
    ]
    for thread in running:
        thread.start()
    seen = []

    def look_when_told():
        if "default" in hints.heard(0.05):
            with engine.connect() as connection:
                seen.append(connection.scalar(select(func.count()).select_from(Job)))
        return seen and seen[-1] == threads * each

    wait_until(look_when_told, 30, what="all jobs seen")
    for thread in running:
        thread.join()
    engine.dispose()
    assert len(seen) < threads * each  # one hint tells of several commits


@pytest.mark.covers("T53")
def test_engines_made_per_request_share_one_notifying_connection(engine, hints):
    for number in range(20):
        special = engine.execution_options(logging_token=str(number))
        with PlainSession(special) as session, session.begin():
            enqueue(session, work, Work(f"{number}"))
    hints.wait_for("default")
    assert hints.until_quiet(engine) is not None
    with engine.connect() as connection:
        notifying = connection.scalar(
            text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND query LIKE 'select pg_notify%'"
            )
        )
    assert notifying == 1


def test_a_translated_schema_has_its_own_channel(engine, pg_url):
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA elsewhere"))
        for table in ("sqla_job", "sqla_job_body"):
            connection.execute(
                text(f"CREATE TABLE elsewhere.{table} (LIKE {table} INCLUDING ALL)")
            )
    translation = {None: "elsewhere"}
    with Hints(pg_url) as here, Hints(pg_url, channel(translation)) as there:
        with engine.connect() as connection:
            translated = connection.execution_options(schema_translate_map=translation)
            enqueue(translated, work, Work("a"))
            translated.commit()
        there.wait_for("default")
        assert here.until_quiet(engine) == []
    assert keys(engine) == ["marker:1"]


def test_a_lost_notifying_connection_is_replaced(Session, hints, engine):
    with Session.begin() as session:
        session.enqueue(work, Work("a"))
    hints.wait_for("default")
    with engine.begin() as connection:
        ended = connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'select pg_notify%'"
            )
        )
        assert ended.scalars().all() == [True]
    with Session.begin() as session:
        session.enqueue(work, Work("b"))
    hints.wait_for("default")


def test_a_database_that_is_gone_costs_no_commit_and_no_other_hint(
    databases, Session, hints
):
    with databases.fresh() as url:
        gone = create_engine(url)
        with gone.connect() as connection:
            enqueue(connection, work, Work("a"))
            write_jobs(connection)
            connection.rollback()
        gone.dispose()
    with contextlib.suppress(DBAPIError), PlainSession(gone) as session:
        enqueue(session, work, Work("a"))
        session.commit()
    with Session.begin() as session:
        session.enqueue(work, Work("b"))
    hints.wait_for("default")


# --- processes -------------------------------------------------------------------------


def commit_and_exit(key, kind):
    engine = create_engine(os.environ["SQLA_JOBS_DATABASE_URL"])
    if kind == "session":
        with JobSession(engine) as session, session.begin():
            session.enqueue(work, Work(key))
    else:
        connection = engine.connect()
        enqueue(connection, work, Work(key))
        connection.commit()
        globals()["kept"] = connection  # still out when the interpreter ends


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_hints_are_flushed_when_the_process_ends_at_once(
    processes, hints, engine, kind
):
    child = processes.call(commit_and_exit, "a", kind)
    assert child.wait() == 0, child.output
    assert keys(engine) == ["a"]
    hints.wait_for("default", 2.0)


def fork_and_enqueue():
    engine = create_engine(os.environ["SQLA_JOBS_DATABASE_URL"])

    def enqueue_one(job, key):
        with JobSession(engine) as session, session.begin():
            session.enqueue(job, Work(key))

    enqueue_one(work, "before")
    wait_until(lambda: len(keys(engine)) == 1)
    child = os.fork()
    if not child:
        engine.dispose(close=False)
        for n in range(10):
            enqueue_one(other, f"child:{n}")
        raise SystemExit(0)
    for n in range(10):
        enqueue_one(work, f"parent:{n}")
    _, status = os.waitpid(child, 0)
    enqueue_one(work, "after")
    print("child", status, flush=True)


@pytest.mark.covers("C28")
def test_after_a_fork_parent_and_child_send_hints_of_their_own(
    processes, hints, engine
):
    """Neither uses the other's connection: no protocol error, and all hints come."""
    # The application's own connection is dropped by dispose(close=False), unclosed.
    strict = {"PYTHONWARNINGS": "error,ignore::ResourceWarning"}
    parent = processes.call(fork_and_enqueue, env=strict)
    heard = []
    wait_until(
        lambda: heard.extend(hints.heard(0.05)) or {"default", "other"} <= {*heard},
        20,
        what=f"hints of parent and child; {parent.output}",
    )
    parent.wait_for_line("child 0")
    assert parent.wait() == 0, parent.output
    assert len(parent.lines) == 1, parent.output
    hints.wait_for("default", 2.0)
    assert len(keys(engine)) == 22
