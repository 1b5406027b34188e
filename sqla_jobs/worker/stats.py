"""What a worker has done so far, as numbers."""

from __future__ import annotations

import attrs


@attrs.define
class Stats:
    """Counts since the start; each is written by one thread and read by any.

    ``claim_seconds`` and ``settle_seconds`` are the time spent in those statements,
    ``execute_seconds`` the sum over all attempts.
    """

    claimed: int = 0
    succeeded: int = 0
    retried: int = 0
    dead: int = 0
    snoozed: int = 0
    cancelled: int = 0
    interrupted: int = 0
    released: int = 0
    stale: int = 0
    """Outcomes that were refused because the attempt had lost its job."""
    rescued: int = 0
    pruned: int = 0
    claims: int = 0
    batches: int = 0
    claim_seconds: float = 0.0
    settle_seconds: float = 0.0
    execute_seconds: float = 0.0

    stuck: int = 0
    """Abandoned attempts whose handlers do not come back; now, not since the start."""
    listening: bool = False
    """Whether notifications are known to arrive; else the worker polls. Now."""

    @property
    def settled(self) -> int:
        """Attempts that ended one way or the other."""
        return (
            self.succeeded
            + self.retried
            + self.dead
            + self.snoozed
            + self.cancelled
            + self.interrupted
        )
