"""Faults inside a process: it kills or freezes itself at a chosen point.

A *point* is a step of the engine, ``before`` or ``after`` it: a statement of the queue,
a COMMIT, a hint; or ``inside`` a handler that has flushed. One point at a time is armed,
every few seconds another one, so that rare points are met as often as frequent ones.
SIGSTOP and SIGKILL are sent to the calling thread: with a signal to the process, that
thread could run on for a moment, past the point.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from sqlalchemy.engine.default import DefaultDialect

from sqla_jobs.dialects import QueueDialect
from sqla_jobs.queue import wakeup
from tests.chaos.plan import Plan

FENCED = frozenset({"hold", "complete", "renew"})
"""Steps whose empty answer says that the database has refused a stale write."""
REFUSED = "refused"
"""How the line begins that tells of one."""
PATIENCE = 4.0
"""Seconds after which a point that was not reached is given up for another."""

Point = tuple[str, str]

STEPS = ("claim", "settle", "complete", "hold", "renew", "rescue", "end_backends")
# Before a COMMIT its UPDATE has been done; after it nobody was told of it.
COMMIT: tuple[Point, ...] = (("commit", "before"), ("commit", "after"))
WORKER: tuple[Point, ...] = (
    *((step, when) for step in STEPS for when in ("before", "after")),
    *COMMIT,
    *COMMIT,
    ("insert", "after"),
    ("hint", "before"),
    ("handler", "inside"),
    ("handler", "inside"),
)
PRODUCER: tuple[Point, ...] = (
    ("insert", "before"),
    ("insert", "after"),
    *COMMIT,
    ("hint", "before"),
    ("hint", "after"),
)


def say(line: str) -> None:
    """Print *line* in one write, so that lines of several threads never mix."""
    os.write(1, f"{line}\n".encode())


def die() -> None:
    """End this process here, as an out-of-memory killer does."""
    signal.pthread_kill(threading.get_ident(), signal.SIGKILL)


def freeze() -> None:
    """Stop this process here, until somebody lets it go on."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


class Faults:
    """Decides when this process fails, and how."""

    def __init__(
        self, plan: Plan, chance: random.Random, points: tuple[Point, ...]
    ) -> None:
        self._plan = plan
        self._chance = chance
        self._points = points
        self._lock = threading.Lock()
        self._at = 0.0
        self._armed: Point = points[0]
        self._arm()

    def reach(self, point: Point) -> None:
        """Fail here, if it is time to and this is the armed point."""
        now = time.monotonic()
        if now < self._at or self._plan.is_calm:
            return
        with self._lock:
            if now > self._at + PATIENCE:
                self._arm(0.0)
            if point != self._armed or now < self._at:
                return
            action, seconds = self._choose()
            self._arm()
        self._fail(point, action, seconds)

    def _arm(self, wait: float | None = None) -> None:
        if wait is None:
            wait = self._chance.expovariate(1 / self._plan.between_faults)
        self._armed = self._chance.choice(self._points)
        self._at = time.monotonic() + wait

    def _choose(self) -> tuple[str, float]:
        plan = self._plan
        kind = self._chance.random()
        if kind < 0.4:
            return "kill", 0.0
        if kind < 0.78:
            return "freeze", self._chance.uniform(0.05, 1.0)
        if kind < 0.98 or not plan.long_freezes:
            return "freeze", plan.fatal_freeze + self._chance.uniform(0.0, 2.0)
        return "freeze", 20.0

    @staticmethod
    def _fail(point: Point, action: str, seconds: float) -> None:
        # The parent reads this and thaws us when the time has come.
        say(f"fault {action} {point[0]}:{point[1]} {seconds:.2f}")
        if action == "kill":
            die()
        else:
            freeze()


_installed: list[Faults] = []


def reach(name: str, when: str) -> None:
    """Come to a point; nothing happens in a process without faults."""
    for faults in _installed:
        faults.reach((name, when))


def install(faults: Faults) -> None:
    """Let this process come to points wherever the engine takes a step."""
    _installed.append(faults)
    for dialect in QueueDialect.__subclasses__():
        for step in ("claim", "hold", "renew", "rescue", "end_backends"):
            _wrap(dialect, step, _always(step))
        _wrap(dialect, "insert_jobs", _always("insert"))
        _wrap(dialect, "settle", lambda kw: "complete" if kw["wait"] else "settle")
    _wrap(DefaultDialect, "do_commit", _always("commit"))
    _wrap(wakeup._Target, "send", _always("hint"))


def _always(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda kw: name


def _wrap(owner: type, method: str, name_of: Callable[[dict[str, Any]], str]) -> None:
    inner = getattr(owner, method)

    @wraps(inner)
    def step(*args: Any, **kw: Any) -> Any:
        name = name_of(kw)
        reach(name, "before")
        result = inner(*args, **kw)
        reach(name, "after")
        if name in FENCED and not result:
            say(f"{REFUSED} {name}")
        return result

    setattr(owner, method, step)
