"""The states of a job and the transitions between them: pure data, drawn once.

::

    enqueue ──▶ ready ──claim──▶ running ──settle──▶ succeeded | dead | cancelled
                  ▲                │                        │
                  ├─retry, snooze──┤                        │
                  ├─rescue─────────┘                        │
                  └──────operator retry, rerun──────────────┘

There are no promoted states: immediate, delayed and retrying jobs are all ``ready`` with
a ``run_at``. A ``waiting`` job sleeps or waits for an event, and is claimed like a ready
one when its time comes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """Where a job is in its life; stored as its text."""

    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


CLAIMABLE: Final = frozenset({JobState.READY, JobState.WAITING})
"""States from which a worker claims, once ``run_at`` has come."""

FINISHED: Final = frozenset({JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED})
"""States that retention removes; left only by an operator's retry or a rerun."""

TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.READY: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.WAITING: frozenset({JobState.READY, JobState.RUNNING, JobState.CANCELLED}),
    JobState.RUNNING: frozenset(JobState) - {JobState.RUNNING},
    JobState.SUCCEEDED: frozenset({JobState.READY}),
    JobState.DEAD: frozenset({JobState.READY}),
    JobState.CANCELLED: frozenset({JobState.READY}),
}
"""Every allowed step; whatever leaves a finished state raises the fence."""


class AttemptOutcome(StrEnum):
    """How one attempt ended, as its history row says."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SNOOZED = "snoozed"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    TIMED_OUT = "timed_out"
