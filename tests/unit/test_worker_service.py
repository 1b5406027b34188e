"""The one shape of loops: run, wait, back off, stop."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from sqla_jobs.worker.service import Service
from tests.support.waiting import wait_until


class Counting(Service):
    name = "counting"

    def __init__(self, pause=60.0, error=None):
        super().__init__()
        self.runs = 0
        self.error = error
        self.closed = threading.Event()
        self._pause = pause

    def run_once(self):
        self.runs += 1
        if self.error is not None:
            raise self.error
        return 1

    def pause(self):
        return self._pause

    def close(self):
        self.closed.set()


@pytest.fixture
def started():
    services = []

    def start(service):
        services.append(service)
        service.start()
        return service

    yield start
    for service in services:
        assert service.stop(5.0)


def test_run_once_can_be_called_by_hand():
    service = Counting()
    assert service.run_once() == 1
    assert service.stop(0)


def test_a_poke_ends_the_pause_and_stop_ends_the_thread(started):
    service = started(Counting())
    wait_until(lambda: service.runs == 1)
    service.poke()
    wait_until(lambda: service.runs == 2)
    assert service.stop(5.0)
    assert service.stop(5.0)
    assert service.closed.is_set()


def test_a_poke_during_a_run_brings_another_run(started):
    entered, gate = threading.Event(), threading.Event()

    class Slow(Counting):
        def run_once(self):
            entered.set()
            assert gate.wait(10)
            return super().run_once()

    service = started(Slow())
    assert entered.wait(10)
    service.poke()
    gate.set()
    wait_until(lambda: service.runs == 2)


@pytest.mark.covers("T56")
@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), MemoryError()])
def test_t56_a_loop_that_fails_backs_off_whatever_pokes_it(started, error):
    """Pokes come at any rate; the number of tries follows the clock alone."""
    service = Counting(pause=0.0, error=error)
    started(service)
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        service.poke()
        time.sleep(0.001)
    assert 2 <= service.runs <= 8  # 0, 0.1, 0.3, 0.7, 1.5 s, with jitter
    assert service.failing


def test_t56_trouble_is_logged_when_it_begins_changes_and_ends(started, caplog):
    service = Counting(pause=60.0, error=ValueError("one"))
    service.longest_pause = 0.01
    with caplog.at_level(logging.INFO, "sqla_jobs.worker"):
        started(service)
        wait_until(lambda: service.runs > 5)
        service.error = KeyError("two")
        wait_until(lambda: "two" in caplog.text)
        service.error = None
        wait_until(lambda: not service.failing)
    messages = [r.getMessage() for r in caplog.records]
    assert len(messages) == 3
    assert "one" in messages[0]
    assert "two" in messages[1]
    assert "works again" in messages[2]


def test_a_stop_ends_a_backoff(started):
    service = started(Counting(error=ValueError()))
    service.longest_pause = 60.0
    wait_until(lambda: service.runs >= 1)
    begun = time.monotonic()
    assert service.stop(5.0)
    assert time.monotonic() - begun < 2.0
