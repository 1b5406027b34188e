"""What inspection returns: frozen values with one JSON shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import attrs

T = TypeVar("T")

COUNT_LIMIT: Final = 10_001
"""Counts stop here: it means "more than 10,000", whatever the backlog."""


def plain(value: object) -> Any:  # noqa: ANN401 - JSON is any of six types
    """Return *value* as JSON data: ids and instants as text, durations in seconds."""
    match value:
        case Facts():
            return value.as_dict()
        case UUID():
            return str(value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Enum():
            return value.value
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return value


class Facts:
    """Base of all results."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as JSON data, the same that ``sqla-jobs --json`` prints."""
        fields = attrs.fields_dict(type(self))  # type: ignore[arg-type]  # all are attrs
        return {name: plain(getattr(self, name)) for name in fields}


@attrs.frozen
class Unreadable(Facts):
    """A row whose values cannot be decoded; somebody wrote it by hand."""

    id: UUID
    reason: str


@attrs.frozen
class Page(Facts, Generic[T]):
    """A part of a list, in the list's order."""

    items: Sequence[T]
    next: str | None
    """Give this as ``after`` to get the next page; None on the last one."""
    unreadable: Sequence[Unreadable] = ()
    """Rows of this part that cannot be decoded, and so are not among the items."""


@attrs.frozen(kw_only=True)
class JobSummary(Facts):
    """One job as lists show it, without its payloads."""

    id: UUID
    name: str
    tenant: str | None
    """None with ``NO_TENANT``."""
    queue: str
    key: str
    state: str
    priority: int
    run_at: datetime
    attempt: int
    max_attempts: int
    created_at: datetime
    attempted_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    enqueued_by: str | None
    traceparent: str | None


@attrs.frozen(kw_only=True)
class DeadLetter(JobSummary):
    """A dead job, with what its last attempt said."""

    error_type: str | None
    error: str | None
    """The end of the text, where a traceback says what it was; :func:`.job` has all."""


@attrs.frozen(kw_only=True)
class DeadGroup(Facts):
    """Dead jobs that died of the same thing."""

    name: str
    error_type: str | None
    message: str
    """The last line of the error, with ``#`` for what differs: numbers, ids."""
    count: int
    first_at: datetime
    """The earliest death that was looked at."""
    last_at: datetime
    sample_id: UUID
    """The one that died last."""
    sample_error: str | None
    """The last line of its error, as it is."""


@attrs.frozen
class DeadGroups(Facts):
    """Dead letters by what they died of, the largest group first."""

    groups: Sequence[DeadGroup]
    more: bool
    """There are more groups."""
    looked_at: int
    """Dead jobs that were grouped, the latest ones."""
    older: bool
    """There are dead jobs that were not looked at: they died earlier."""


@attrs.frozen(kw_only=True)
class AttemptTrace(Facts):
    """One execution of a job."""

    number: int
    outcome: str
    """``running`` while it runs, else how it ended."""
    worker: str | None
    """Host and process, for people."""
    started_at: datetime | None
    ended_at: datetime | None
    error_type: str | None
    error: str | None


@attrs.frozen(kw_only=True)
class JobTrace(JobSummary):
    """All there is to know about one job."""

    fence: int
    interruptions: int
    deadline_at: datetime | None
    cancel_reason: str | None
    rerun: bool
    """One more run was asked for while this one runs."""
    attempts: Sequence[AttemptTrace]
    """In order; the one that runs or that succeeded comes last."""
    seen_at: datetime
    """The database's time of this look."""
    next_run_in: timedelta | None
    """Until the job can be claimed; zero when it is due, None unless it waits."""
    retry_delays: Sequence[timedelta]
    """At most how long each of the next retries would wait, when the declaration is
    known; the first ten."""
    input: object
    """JSON data with sensitive values masked; None when hidden."""
    input_hidden: str | None
    """Why the input is not shown; None when it is."""
    output: object
    """JSON data with sensitive values masked; None when hidden or absent."""
    output_hidden: str | None
    """Why the output is not shown; None when it is, or when there is none."""


@attrs.frozen(kw_only=True)
class QueueStats(Facts):
    """How one queue stands; every count stops at :data:`.COUNT_LIMIT`."""

    name: str
    depth: int
    """Jobs that wait to be claimed, those of a later time included."""
    ready: int
    """Those of them that are due."""
    running: int
    dead: int
    oldest_ready_age: timedelta | None
    """How long the job that is due the longest has waited, by the database's clock."""
    paused_at: datetime | None
    """Since when nothing is claimed; None when the queue is not paused."""
    workers: int
    """Workers with a valid lease that serve it."""


@attrs.frozen(kw_only=True)
class RunningJob(Facts):
    """A job that a worker runs."""

    id: UUID
    name: str
    queue: str
    attempt: int
    attempted_at: datetime | None
    deadline_at: datetime | None


@attrs.frozen(kw_only=True)
class WorkerStats(Facts):
    """One start of a worker process."""

    id: UUID
    host: str
    pid: int
    version: str
    queues: Mapping[str, int]
    """Its queues, and how many jobs of each it runs at a time."""
    alive: bool
    """Its lease is valid; its jobs are rescued soon when it is not."""
    started_at: datetime
    lease_until: datetime
    lease_left: timedelta
    """Negative since the lease ran out."""
    listening: bool | None
    """Notifications were known to arrive at its last beat; False: it polls. None before
    the first beat, and where the database has none."""
    stuck: int
    """Abandoned attempts whose handlers had not come back at its last beat."""
    running: int
    jobs: Sequence[RunningJob]
    """What it runs, the longest first; the first twenty."""
