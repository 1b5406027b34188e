"""Waiting for facts: bounded, by polling, never by sleeping for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Engine, text

T = TypeVar("T")

POLL = 0.01


def wait_until(
    predicate: Callable[[], T], timeout: float = 10.0, *, what: str = ""
) -> T:
    """Call *predicate* until it answers something true, and return that.

    :param timeout: seconds; then :exc:`AssertionError` tells *what* did not happen and
        the last answer. Exceptions of *predicate* pass through.
    """
    until = time.monotonic() + timeout
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() > until:
            label = what or getattr(predicate, "__qualname__", repr(predicate))
            msg = f"{label}: not within {timeout:g} s; the last answer was {answer!r}"
            raise AssertionError(msg)
        time.sleep(POLL)


WAITING_FOR_A_LOCK = text(
    """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
      AND cardinality(pg_blocking_pids(pid)) > 0
    """
)


def wait_for_lock(
    engine: Engine, *, pid: int | None = None, count: int = 1, timeout: float = 10.0
) -> list[int]:
    """Wait until *count* backends of this database (or the one *pid*) wait for a lock.

    A backend counts when the server itself names who blocks it, so what a test does
    next is certain to happen while the wait is on. Returns the waiting pids.
    """

    def waiting() -> list[int]:
        # AUTOCOMMIT: each look is a new snapshot of pg_stat_activity.
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as look:
            pids = sorted(look.scalars(WAITING_FOR_A_LOCK))
        if pid is not None:
            return [pid] if pid in pids else []
        return pids if len(pids) >= count else []

    who = f"backend {pid}" if pid is not None else f"{count} backend(s)"
    return wait_until(waiting, timeout, what=f"{who} waiting for a lock")
