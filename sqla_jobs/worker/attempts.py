"""The attempts of this process: claimed, perhaps running, not ended.

Several threads may want to end one attempt: the handler's when it returns, the watchdog
when it runs too long, the heartbeat when it was lost, the shutdown. Whoever takes it
out of :class:`Attempts` ends it; all others find it gone and let it be.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sqla_jobs.declare.context import AttemptState

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from sqla_jobs.declare.job import JobSpec
    from sqla_jobs.queue.claim import Claim
    from sqla_jobs.queue.fence import AttemptGuard
    from sqla_jobs.worker.borrowed import Borrowed
    from sqla_jobs.worker.lease import Lease
    from sqla_jobs.worker.room import Room


class Attempt:
    """One claim on its way through this process."""

    __slots__ = (
        "borrowed",
        "cancel_task_at",
        "claim",
        "claimed_at",
        "completing",
        "deadline",
        "guard",
        "interrupted",
        "lease",
        "room",
        "spec",
        "started",
        "state",
        "task",
    )

    def __init__(
        self,
        claim: Claim,
        spec: JobSpec[Any, Any],
        room: Room,
        lease: Lease,
        claimed_at: float,
    ) -> None:
        self.claim = claim
        self.spec = spec
        self.room = room
        self.lease = lease
        self.claimed_at = claimed_at
        self.state = AttemptState()
        self.started: float | None = None
        self.deadline: float | None = None
        """When it times out, by the monotonic clock."""
        self.task: asyncio.Task[None] | None = None
        """What runs it on the handlers' loop."""
        self.cancel_task_at: float | None = None
        """When the task is cancelled, if the handler does not end by itself."""
        self.completing = False
        """The transaction that completes the job is being committed."""
        self.interrupted = False
        """The worker, not the job, asks the attempt to end."""
        self.guard: AttemptGuard | None = None
        self.borrowed: Borrowed | None = None
        """The connections that its session holds."""

    def __repr__(self) -> str:
        claim = self.claim
        return f"<Attempt {claim.attempt} of {claim.name} {claim.id} f{claim.fence}>"


class Attempts:
    """Every attempt that has not ended, and those that ended but did not come back.

    No lock: each step is one operation of a dict, which the interpreter does as one.
    """

    def __init__(self) -> None:
        self._live: dict[Attempt, None] = {}
        self._stuck: dict[Attempt, float] = {}

    def add(self, batch: Iterable[Attempt]) -> None:
        """Know *batch* from now on."""
        self._live.update(dict.fromkeys(batch))

    def end(self, attempt: Attempt) -> bool:
        """Take *attempt* out; True for the one caller that may end it."""
        return self._live.pop(attempt, attempt) is None

    def __contains__(self, attempt: Attempt) -> bool:
        return attempt in self._live

    def __len__(self) -> int:
        return len(self._live)

    def live(self) -> list[Attempt]:
        """Return those that have not ended."""
        return list(self._live)

    def pairs(self, lease: Lease) -> list[tuple[str, int]]:
        """Return ``(job id, fence)`` of what is claimed under *lease* and has not ended."""
        return [
            (a.claim.id, a.claim.fence) for a in list(self._live) if a.lease is lease
        ]

    def named(self, ids: Iterable[str]) -> list[Attempt]:
        """Return the attempts at the jobs *ids*; of two at one job the older one."""
        found: dict[str, Attempt] = {}
        wanted = frozenset(ids)
        for attempt in list(self._live):
            claim = attempt.claim
            if claim.id not in wanted:
                continue
            other = found.get(claim.id)
            if other is None or claim.fence < other.claim.fence:
                found[claim.id] = attempt
        return list(found.values())

    def abandoned(self, attempt: Attempt) -> None:
        """Remember that the running *attempt* was ended from outside."""
        self._stuck[attempt] = time.monotonic()

    def returned(self, attempt: Attempt) -> None:
        """Forget *attempt*: its handler came back."""
        self._stuck.pop(attempt, None)

    def stuck(self, longer_than: float = 0.0) -> list[Attempt]:
        """Return the abandoned attempts whose handlers have not come back."""
        before = time.monotonic() - longer_than
        return [a for a, since in list(self._stuck.items()) if since <= before]
