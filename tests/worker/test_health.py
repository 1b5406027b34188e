"""``/live`` and ``/ready``: what they say while a worker works, suffers, stops."""

from __future__ import annotations

import http.client
import json
import socket
import threading

import pytest

from sqla_jobs.exc import WorkerConfigError
from tests.support.waiting import wait_until
from tests.worker import app
from tests.worker.test_shutdown import away


def ask(worker, question, method="GET"):
    """Return the status and the facts."""
    connection = http.client.HTTPConnection("127.0.0.1", worker.health_port, timeout=5)
    try:
        connection.request(method, question)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if body else None
    finally:
        connection.close()


def test_a_worker_that_claims_is_live_and_ready(queue, start):
    worker = start(health_port=0)
    wait_until(lambda: ask(worker, "/ready")[0] == 200)
    status, facts = ask(worker, "/live")
    assert status == 200
    assert facts["live"] is facts["ready"] is facts["lease_valid"] is True
    assert facts["stuck"] == facts["running"] == 0
    wait_until(lambda: ask(worker, "/live")[1]["listening"])
    assert ask(worker, "/ready?verbose=1", "HEAD") == (200, None)
    assert ask(worker, "/")[0] == ask(worker, "/live/../etc")[0] == 404


def test_nothing_secret_or_of_the_jobs_is_told(queue, start, engine):
    queue.add(app.hold, "secret name")
    worker = start(health_port=0)
    queue.wait_for_visits(1)
    _, facts = ask(worker, "/ready")
    assert facts["running"] == 1
    said = json.dumps(facts)
    for secret in ("secret", "hold", "default", engine.url.database):
        assert secret not in said
    queue.go()


def test_with_the_database_away_it_is_live_and_not_ready(
    queue, start, engine, databases
):
    """To start another process would help nobody; this one goes on by itself."""
    worker = start(health_port=0, lease_ttl="3s")
    wait_until(lambda: ask(worker, "/ready")[0] == 200)
    engine.dispose()
    with away(databases, engine.url.database):
        wait_until(lambda: ask(worker, "/ready")[0] == 503)
        wait_until(lambda: not ask(worker, "/ready")[1]["lease_valid"])
        assert ask(worker, "/live")[0] == 200
    wait_until(lambda: ask(worker, "/ready")[0] == 200)


def test_a_heartbeat_that_hangs_is_not_live(queue, start, monkeypatch):
    worker = start(health_port=0, lease_ttl="1s")
    hangs, go_on = threading.Event(), threading.Event()

    def hang():
        hangs.set()
        go_on.wait(30)
        return 0

    monkeypatch.setattr(worker._parts.heartbeat, "run_once", hang)
    assert hangs.wait(10)
    try:
        wait_until(lambda: ask(worker, "/live")[0] == 503)
    finally:
        go_on.set()


def test_a_worker_that_stops_is_live_until_its_end_and_not_ready(queue, start):
    queue.add(app.deaf, "x")
    worker = start(health_port=0, grace="20s")
    queue.wait_for_visits(1)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    wait_until(lambda: ask(worker, "/ready")[0] == 503)
    status, facts = ask(worker, "/live")
    assert (status, facts["stopping"]) == (200, True)
    queue.go()
    stopping.join(20)
    assert worker.health_port is None


def test_a_client_that_sends_nothing_holds_nobody_up(queue, start):
    worker = start(health_port=0)
    with socket.create_connection(("127.0.0.1", worker.health_port)):
        assert ask(worker, "/live")[0] == 200


def test_a_port_that_is_taken_is_refused_and_nothing_runs(queue, start):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(WorkerConfigError, match="health_port"),
    ):
        start(health_port=taken.getsockname()[1])
    with pytest.raises(WorkerConfigError, match="no port"):
        start(health_port=70_000)
    assert not [t for t in threading.enumerate() if t.name.startswith("sqla-jobs-h")]


def test_stuck_attempts_are_counted_where_people_look(queue, start):
    """C38: the thread cannot be ended, so it is told of."""
    from sqlalchemy.orm import Session

    from sqla_jobs import inspect

    queue.add(app.slow, "stuck")
    worker = start(health_port=0, lease_ttl="2s", queues={"default": 2})
    wait_until(lambda: worker.stats.stuck == 1)
    assert ask(worker, "/live")[1]["stuck"] == 1

    def told():
        with Session(queue.look) as session:
            return [w.stuck for w in inspect.workers(session)] == [1]

    wait_until(told)
    queue.go()
    wait_until(lambda: worker.stats.stuck == 0)
