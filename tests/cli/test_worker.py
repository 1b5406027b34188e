"""``sqla-jobs worker``: the process that operators start."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from sqla_jobs import enqueue
from sqla_jobs.models import Job, WorkerRow
from tests.cli.application import LOGGED, Charge, charge, index

APP = ("--app", "tests.cli.application:jobs")
SYNC = ("--session", "tests.cli.application:Session")
ASYNC = ("--session", "tests.cli.application:AsyncSession")
QUEUES = ("-q", "billing:2", "-q", "default")


@pytest.fixture
def start(processes, pg_url):
    """Start ``sqla-jobs worker`` on the application of these tests."""
    url = pg_url.render_as_string(hide_password=False)

    def start(*arguments):
        command = ["-m", "sqla_jobs", "worker", *APP, *arguments]
        return processes.python(*command, env={"SHOP_URL": url})

    return start


def states(engine):
    with Session(engine) as session:
        return sorted(session.scalars(select(Job.state)))


def test_it_runs_both_kinds_of_jobs_until_sigterm(start, engine, wait_until):
    worker = start(*SYNC, *ASYNC, *QUEUES, "--grace", "5s")
    with Session(engine) as session, session.begin():
        enqueue(session, charge, Charge(1, "4111-1111"))
        enqueue(session, charge, Charge(-1, "4111-1111"))
        enqueue(session, index, Charge(1, "4111-1111"))

    wait_until(
        lambda: states(engine) == ["dead", "succeeded", "succeeded"], 20, what="settled"
    )
    os.kill(worker.pid, signal.SIGTERM)
    wait_until(lambda: worker.returncode is not None, 20, what="ended")

    assert worker.returncode == 0, worker.output
    assert "4111-1111" not in worker.output


def test_several_processes_are_kept_and_end_together(start, engine, wait_until):
    worker = start(*SYNC, *ASYNC, *QUEUES, "--processes", "2")

    def pids():
        with Session(engine) as session:
            found = session.scalars(select(WorkerRow.pid)).all()
        return len(found) == 2 and found

    children = wait_until(pids, 30, what="two workers registered")
    assert worker.pid not in children
    os.kill(worker.pid, signal.SIGTERM)
    wait_until(lambda: worker.returncode is not None, 30, what="ended")
    assert worker.returncode == 0, worker.output


def test_the_url_alone_is_enough_for_sync_handlers(run):
    """Here it gets as far as the async handler that no factory serves."""
    said = run("worker", *APP, *QUEUES)
    assert said.code == 1
    assert "async_session" in said.err


def free_port():
    """Return a port whose next one is free as well, a moment ago."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            try:
                with socket.create_server(("127.0.0.1", port + 1)):
                    return port
            except OSError:
                continue


def is_ready(port):
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/ready", timeout=5
        ) as said:
            return json.load(said)["ready"]
    except OSError:
        return False


def test_each_process_answers_on_a_port_of_its_own(start, wait_until):
    port = free_port()
    health = ("--health-port", str(port))
    worker = start(*SYNC, *ASYNC, *QUEUES, "--processes", "2", *health)
    wait_until(lambda: is_ready(port) and is_ready(port + 1), 30, what="both ready")
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait() == 0, worker.output


def test_logs_are_lines_or_objects_that_name_the_job(start, engine, wait_until):
    worker = start(*SYNC, *ASYNC, *QUEUES, "--log-format", "json")
    with Session(engine) as session, session.begin():
        job = enqueue(session, charge, Charge(LOGGED, "4111-1111"))
    wait_until(lambda: states(engine) == ["succeeded"], 20, what="settled")
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait() == 0, worker.output
    records = [json.loads(line) for line in worker.lines]
    assert {"at", "level", "logger", "message", "process"} <= records[0].keys()
    (told,) = [r for r in records if r["logger"] == "sqla_jobs.job"]
    assert told["job_id"] == str(job.id)
    assert told["job_name"] == charge.name
    assert told["attempt"] == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((*SYNC,), "--app"),
        ((*APP, *SYNC, *SYNC), "second sync"),
        ((*APP, *SYNC, "-q", "billing:0"), "billing:0"),
        ((*APP, *SYNC, "-q", "billing:x"), "billing:x"),
        ((*APP, *SYNC, "-q", "a:1", "-q", "a:2"), "twice"),
        ((*APP, *SYNC, "--grace", "soon"), "grace"),
        ((*APP, *SYNC, "--lease-ttl", "-1s"), "lease_ttl"),
        ((*APP, *SYNC, "--processes", "0"), "processes"),
    ],
)
def test_a_worker_that_is_started_wrong_says_what_is_wrong(run, arguments, word):
    said = run("worker", *arguments)
    assert said.code == 2
    assert word in said.err
    assert "Traceback" not in said.err
