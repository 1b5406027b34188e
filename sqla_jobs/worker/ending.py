"""What the executor hands to the settler: how an attempt ended, and whose it was."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from sqla_jobs.queue.outcome import (
    Cancelled,
    Dead,
    Interrupted,
    Outcome,
    Released,
    Retry,
    Settlement,
    Snooze,
    Succeeded,
)

if TYPE_CHECKING:
    from sqla_jobs.queue.claim import Claim
    from sqla_jobs.worker.attempts import Attempt
    from sqla_jobs.worker.lease import Lease
    from sqla_jobs.worker.room import Room


class Mark(Enum):
    """An end that needs no settling any more."""

    COMMITTED = "committed"
    """Settled by the commit of the attempt's own session."""
    STALE = "stale"
    """The job belongs to somebody else by now; nothing may be written."""


class Doubtful:
    """An outcome that counts only if a COMMIT, whose answer was lost, did not arrive."""

    __slots__ = ("outcome",)

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


Ended: TypeAlias = Outcome | Mark | Doubtful


class Ending:
    """One ended claim on its way into the database."""

    __slots__ = ("claim", "doubtful", "lease", "on_dead", "outcome", "room")

    def __init__(
        self,
        claim: Claim,
        room: Room,
        lease: Lease,
        outcome: Outcome | Mark,
        *,
        on_dead: bool = False,
        doubtful: bool = False,
    ) -> None:
        self.claim = claim
        self.room = room
        self.lease = lease
        self.outcome = outcome
        self.on_dead = on_dead
        """Its declaration names a job to enqueue when it dies."""
        self.doubtful = doubtful
        """It may have been settled already: a refusal is then no loss."""

    @classmethod
    def of(cls, attempt: Attempt, ended: Ended) -> Ending:
        """Return the ending of *attempt*."""
        doubtful = isinstance(ended, Doubtful)
        outcome = ended.outcome if isinstance(ended, Doubtful) else ended
        return cls(
            attempt.claim,
            attempt.room,
            attempt.lease,
            outcome,
            on_dead=attempt.spec.on_dead is not None and isinstance(outcome, Dead),
            doubtful=doubtful,
        )

    @property
    def settlement(self) -> Settlement | None:
        """What is to be written; None when there is nothing to write any more."""
        if isinstance(self.outcome, Mark):
            return None
        claim = self.claim
        return Settlement(claim.id, claim.fence, claim.attempt, self.outcome)

    @property
    def is_for_others(self) -> bool:
        """Whether the job is to be had at once, by any worker but the one it had."""
        match self.outcome:
            case Released(delay):
                return not delay
            case outcome:
                return isinstance(outcome, Interrupted)

    @property
    def again_in(self) -> float | None:
        """Seconds until the job can be claimed again; None when it has ended."""
        match self.outcome:
            case Retry(delay) | Snooze(delay) | Released(delay):
                return delay.total_seconds()
            case Interrupted():
                return 0.0
            case Succeeded() | Dead() | Cancelled() | Mark():
                return None
