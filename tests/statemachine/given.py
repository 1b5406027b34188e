"""What the state machine works with: two jobs, few keys, and every kind of outcome."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs
from hypothesis import strategies as st

from sqla_jobs import NO_TENANT, Jobs
from sqla_jobs import Retry as RetryPolicy
from sqla_jobs.declare.job import JobSpec
from sqla_jobs.queue.outcome import (
    Cancelled,
    Dead,
    Interrupted,
    Outcome,
    Released,
    Retry,
    Snooze,
    Succeeded,
)
from sqla_jobs.queue.retention import Retention, RetentionRules

START: Final = datetime(2026, 10, 24, 22, tzinfo=UTC)
"""Two hours before summer time ends where the server lives."""
TTL, GRACE, DELAY = (timedelta(seconds=n) for n in (30, 10, 5))
KEPT: Final = Retention(finished=timedelta(minutes=10), dead=timedelta(minutes=20))
RULES: Final = RetentionRules(default=KEPT)
LIMITS: Final = {"model.slow": 60.0}
"""The seconds that an attempt of each job may take."""


@attrs.frozen
class Doc:
    """The input: which document, and which version of it."""

    key: int
    version: int


def _declare(name: str, queue: str, attempts: int) -> JobSpec[Doc, Any]:
    return Jobs().declare(
        name,
        input=Doc,
        output=None,
        idempotency_key=lambda i: f"doc:{i.key}",
        tenant=NO_TENANT,
        queue=queue,
        retry=RetryPolicy(attempts=attempts),
    )


FAST: Final = _declare("model.fast", "default", 3)
SLOW: Final = _declare("model.slow", "slow", 1)


@attrs.frozen
class Wish:
    """An enqueue to come."""

    spec: JobSpec[Doc, Any] = attrs.field(repr=lambda spec: str(spec.name))
    key: int
    mode: str
    priority: int
    delay: timedelta


DELAYS = st.sampled_from([timedelta(seconds=n) for n in (0, 0, 0, 5, 180)])
MODES = st.sampled_from(["keep", "replace", "rerun", "rerun"])
PRIORITIES = st.sampled_from([0, 5, 5, 9])
SPECS = st.sampled_from([FAST, FAST, SLOW])
KEYS = st.integers(0, 2)  # few: duplicates are the point
WISHES = st.tuples(SPECS, KEYS, MODES, PRIORITIES, DELAYS).map(lambda t: Wish(*t))
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.sampled_from([Succeeded(None), Succeeded('{"a":1}'), Succeeded('"x"')]),
    st.builds(Retry, DELAYS, st.just("E"), st.just("no"), timed_out=st.booleans()),
    st.builds(Dead, st.just("E"), st.just("never"), timed_out=st.booleans()),
    st.builds(Snooze, DELAYS),
    st.sampled_from([Cancelled(), Cancelled("why")]),
    st.just(Interrupted("shutdown")),
    st.builds(Released, DELAYS),
)
NTH = st.integers(0, 1 << 16)
"""Picks one of what there is by then."""


def parsed(outcome: Outcome) -> Outcome:
    """Return the outcome as the model keeps it: its output is a value, not JSON."""
    if isinstance(outcome, Succeeded) and outcome.output is not None:
        return Succeeded(json.loads(outcome.output))
    return outcome
