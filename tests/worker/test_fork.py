"""Forks, as ``gunicorn --preload`` makes them: nothing of the parent's is shared."""

from __future__ import annotations

import atexit
import os
import sys
import traceback

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from sqla_jobs import JobSession, Worker
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.exc import WorkerConfigError
from tests.support.waiting import wait_until
from tests.worker import app

JOBS = 100


def preload() -> None:
    """Enqueue in the parent, fork two children that enqueue too; the body of a process."""
    engine = create_engine(os.environ["SQLA_JOBS_DATABASE_URL"])
    session = sessionmaker(engine, class_=JobSession)
    enqueue(session, "parent:before", 1)
    children = [fork(lambda n=n: serve(engine, session, n)) for n in range(2)]
    # At the same time, through the pool that the children have inherited.
    for number in range(JOBS):
        enqueue(session, f"parent:{number}", 1)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    print(f"children ended {codes}", flush=True)


def serve(engine, session, number: int) -> None:
    """Do as a web process does after the fork."""
    engine.dispose(close=False)
    for job in range(JOBS):
        enqueue(session, f"child:{number}:{job}", 1)


def enqueue(session, name: str, count: int) -> None:
    with session.begin() as s:
        s.execute(text("select pg_backend_pid()"))
        for _ in range(count):
            s.enqueue(app.noop, app.Do(name))


def fork(body) -> int:
    """Run *body* in a fork that ends as a web process does, atexit included."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        body()
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    atexit._run_exitfuncs()
    os._exit(code)


def refuse() -> None:
    """Use a running worker, and one that never ran, in forks."""
    engine = create_engine(os.environ["SQLA_JOBS_DATABASE_URL"])
    session = sessionmaker(engine, class_=JobSession)
    async_session = async_sessionmaker(
        create_async_engine(engine.url), class_=AsyncJobSession
    )
    options = {"session": session, "async_session": async_session, "grace": "1s"}
    fresh = Worker(app.jobs, **options)
    with Worker(app.jobs, **options) as running:
        pids = [
            fork(lambda: start_again(running)),
            fork(lambda: start_fresh(engine, fresh)),
        ]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        enqueue(session, "afterwards", 1)
        wait_until(lambda: running.stats.succeeded == 2, what="the parent works")
    print(f"children ended {codes}", flush=True)


def start_again(running) -> None:
    running.stop()  # Not its to stop.
    with pytest.raises(WorkerConfigError, match="after the fork"):
        running.start()


def start_fresh(engine, fresh) -> None:
    engine.dispose(close=False)
    with fresh:
        with fresh._config.session() as s, s.begin():
            s.enqueue(app.noop, app.Do("of the fork"))
        wait_until(lambda: fresh._parts.heartbeat.lease.valid)


@pytest.mark.covers("C28")
def test_c28_children_of_a_fork_share_no_connection_with_their_parent(
    queue, start, processes
):
    """Their hints arrive as well: nobody waits for the poll."""
    worker = start(poll_interval="60s")
    wait_until(worker._parts.listener.healthy)
    parent = processes.call(preload)
    assert parent.wait(60.0) == 0, parent.output
    assert "children ended [0, 0]" in parent.output, parent.output
    assert "Traceback" not in parent.output
    queue.wait_for_states(5.0, succeeded=3 * JOBS + 1)


@pytest.mark.covers("C28")
def test_c28_a_worker_is_not_used_in_a_fork_of_its_process(queue, processes):
    parent = processes.call(refuse)
    assert parent.wait(60.0) == 0, parent.output
    assert "children ended [0, 0]" in parent.output, parent.output
    queue.wait_for_states(succeeded=2)
