"""Jobs that are enqueued but not written yet, and the handles that tell their fate."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from sqla_jobs import clock
from sqla_jobs.declare.job import OnDuplicate
from sqla_jobs.dialects import NewJob
from sqla_jobs.exc import NotWrittenError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID


EnqueueOutcome: TypeAlias = Literal["created", "kept", "replaced", "rerun"]

_STRENGTH: Final[dict[OnDuplicate, int]] = {
    # What to do with a job that exists, for the calls that are not refused then.
    "error": 0,
    "keep": 1,
    "replace": 2,
    "rerun": 3,
}


class Enqueued:
    """What ``enqueue`` returns: a plain value, readable after commit and close.

    ``id``, ``name``, ``tenant`` and ``key`` are known at once; ``id`` changes to the
    existing job's when the write meets a duplicate. ``outcome`` and ``state`` are known
    from the write on, and unknown again when its transaction or savepoint rolls back.
    """

    __slots__ = ("_id", "_new_id", "_outcome", "_state", "key", "name", "tenant")

    def __init__(self, id_: UUID, name: str, tenant: str, key: str) -> None:
        """Make the handle of a pending job; ``enqueue`` does it."""
        self._id = self._new_id = id_
        self.name, self.tenant, self.key = name, tenant, key
        self._outcome: EnqueueOutcome | None = None
        self._state: str | None = None

    @property
    def id(self) -> UUID:
        """The job's id: the new one until written, then the row's."""
        return self._id

    @property
    def outcome(self) -> EnqueueOutcome:
        """What the write did: ``created``, ``kept``, ``replaced`` or ``rerun``.

        :raises NotWrittenError: before the write, and after a rollback of it.
        """
        if self._outcome is None:
            raise NotWrittenError(self.name, "outcome")
        return self._outcome

    @property
    def state(self) -> str:
        """The row's state as the write saw or left it.

        :raises NotWrittenError: before the write, and after a rollback of it.
        """
        if self._state is None:
            raise NotWrittenError(self.name, "state")
        return self._state

    def written(self, id_: UUID, outcome: EnqueueOutcome, state: str) -> None:
        """Record what the write did; the writer calls it."""
        self._id, self._outcome, self._state = id_, outcome, state

    def unwritten(self) -> None:
        """Forget the write: it was rolled back."""
        self._id, self._outcome, self._state = self._new_id, None, None

    def __repr__(self) -> str:
        """Show the job and what is known of it."""
        return f"<Enqueued {self.name} {self.id} {self._outcome or 'not written'}>"


@attrs.frozen(eq=False)
class PendingJob:
    """One call of ``enqueue``, validated and encoded, waiting for its write."""

    handle: Enqueued
    queue: str
    priority: int
    input: str
    max_attempts: int
    mode: OnDuplicate
    run_at: datetime | None
    delay: float
    """Seconds from the call, not from the write."""
    enqueued_by: str | None
    traceparent: str | None
    called_at: float = attrs.field(factory=clock.monotonic)

    @property
    def identity(self) -> tuple[str, str, str]:
        """What makes the job unique."""
        return (self.handle.tenant, self.handle.name, self.handle.key)

    def as_row(self, mode: OnDuplicate) -> NewJob:
        """Return the row to write now: a delay counts from the call of ``enqueue``."""
        return NewJob(
            id=str(self.handle.id),
            tenant=self.handle.tenant,
            name=self.handle.name,
            key=self.handle.key,
            queue=self.queue,
            priority=self.priority,
            input=self.input,
            max_attempts=self.max_attempts,
            run_at=self.run_at,
            # A job without a delay is due now, not in the past: FIFO is by the write.
            after=self.delay - (clock.monotonic() - self.called_at)
            if self.delay
            else 0.0,
            mode=mode,
            enqueued_by=self.enqueued_by,
            traceparent=self.traceparent,
        )


@attrs.frozen(eq=False)
class Merged:
    """All pending calls for one identity, as the one row they ask for."""

    row: NewJob
    calls: tuple[PendingJob, ...]


def merge(pending: Iterable[PendingJob]) -> list[Merged]:
    """Join calls for one identity; sort by identity, the order in which keys lock.

    The strongest mode wins (rerun > replace > keep), and the last input wins; where
    every call says ``keep``, the first one is the one that is kept. A call in mode
    ``error`` that is not the first will be refused in any case, so it gives nothing.
    """
    groups: defaultdict[tuple[str, str, str], list[PendingJob]] = defaultdict(list)
    for job in pending:
        groups[job.identity].append(job)
    merged = []
    for _, calls in sorted(groups.items()):
        mode = max((c.mode for c in calls), key=_STRENGTH.__getitem__)
        heard = [calls[0], *(c for c in calls[1:] if c.mode != "error")]
        wins = calls[0] if all(c.mode == "keep" for c in heard) else heard[-1]
        merged.append(Merged(wins.as_row(mode), tuple(calls)))
    return merged
