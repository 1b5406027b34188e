"""How an attempt can end, as values; the settler persists them, nobody else decides."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

import attrs


@attrs.frozen
class Succeeded:
    """The handler returned; ``output`` is its JSON text, None when it returned None."""

    output: str | None = None


@attrs.frozen
class Retry:
    """The attempt failed and the job shall run again after ``delay``."""

    delay: timedelta
    error_type: str
    error: str
    timed_out: bool = False


@attrs.frozen
class Dead:
    """The attempt failed for good: the job becomes a dead letter."""

    error_type: str
    error: str
    timed_out: bool = False


@attrs.frozen
class Snooze:
    """The handler asked to run later; no failure, and the attempt is not counted."""

    delay: timedelta


@attrs.frozen
class Cancelled:
    """The attempt ended because its job was cancelled."""

    reason: str | None = None


@attrs.frozen
class Interrupted:
    """The worker ended the attempt (shutdown, deadlock): not counted, but bounded."""

    reason: str


@attrs.frozen
class Released:
    """The attempt never started: given back as if it had not been claimed."""

    delay: timedelta = timedelta(0)


Outcome: TypeAlias = (
    Succeeded | Retry | Dead | Snooze | Cancelled | Interrupted | Released
)


@attrs.frozen
class Settlement:
    """One claim's outcome, addressed by the fence it was claimed under."""

    job_id: str
    fence: int
    attempt: int
    outcome: Outcome
