"""The rows that pass between the queue and a database's statements."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import attrs


@attrs.frozen
class NewJob:
    """A job about to be written; ``after`` counts from the write, in seconds."""

    id: str
    tenant: str
    name: str
    key: str
    queue: str
    priority: int
    input: str
    max_attempts: int
    run_at: datetime | None
    after: float
    mode: str
    enqueued_by: str | None
    traceparent: str | None

    @property
    def identity(self) -> tuple[str, str, str]:
        """What makes the job unique, and the order in which keys are locked."""
        return (self.tenant, self.name, self.key)


class Existing(NamedTuple):
    """A row that was there before; ``outcome`` tells what was done to it."""

    id: str
    tenant: str
    name: str
    key: str
    queue: str
    state: str
    outcome: str

    @property
    def identity(self) -> tuple[str, str, str]:
        """What makes the job unique."""
        return (self.tenant, self.name, self.key)


class Claimed(NamedTuple):
    """One claimed job: everything an attempt needs to know but its code."""

    id: str
    fence: int
    name: str
    tenant: str
    queue: str
    key: str
    priority: int
    attempt: int
    max_attempts: int
    interruptions: int
    run_at: datetime
    traceparent: str | None
    enqueued_by: str | None
    input: str | None
    """JSON text; None when it is too large to come with the claim."""


@attrs.frozen
class SettleRow:
    """One outcome, flattened for the settling statement."""

    id: str
    fence: int
    number: int
    outcome: str
    """succeeded, retry, dead, snooze, cancelled, interrupted or released."""
    delay: float = 0.0
    output: str | None = None
    error_type: str | None = None
    error: str | None = None
    timed_out: bool = False


class RenewalRow(NamedTuple):
    """What one heartbeat brings back."""

    lost: list[str]
    cancelled: list[tuple[str, str | None]]
    paused: list[str]
    schema_version: int
    min_code_version: int


class Rescued(NamedTuple):
    """A job that was taken from a dead worker or a passed deadline."""

    id: str
    name: str
    queue: str
    state: str
    attempt: int
    worker_id: str
    timed_out: bool
