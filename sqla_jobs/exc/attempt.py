"""What a running attempt meets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqla_jobs.exc.base import JobsError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta
    from uuid import UUID


class AttemptError(JobsError):
    """Something ended or fenced out an attempt."""

    code = "attempt"


class LeaseLostError(AttemptError):
    """The attempt no longer owns its job: what it writes is refused."""

    code = "lease-lost"

    def __init__(self, job_id: UUID | str, fence: int) -> None:
        """Tell that the attempt with *fence* lost *job_id*."""
        self.job_id, self.fence = job_id, fence
        super().__init__(
            f"This attempt (fence {fence}) no longer owns job {job_id}: its lease ran "
            f"out and the job was given to another, or an operator ended it. The "
            f"transaction was rolled back; do not write anything more for this job."
        )


class JobTimeoutError(AttemptError, TimeoutError):
    """The attempt ran past its ``timeout``."""

    code = "timeout"

    def __init__(self, job: str, limit: timedelta) -> None:
        """Tell that an attempt of *job* ran longer than *limit*."""
        self.job, self.limit = job, limit
        super().__init__(
            f"An attempt of job {job!r} ran longer than its timeout of "
            f"{limit.total_seconds():g} s: raise timeout=, or do less in one job."
        )


class JobAbortedError(AttemptError):
    """The attempt was asked to end: its job was cancelled."""

    code = "aborted"

    def __init__(self, job_id: UUID | str, reason: str | None) -> None:
        """Tell why *job_id* was asked to stop."""
        self.job_id, self.reason = job_id, reason
        because = f" ({reason})" if reason else ""
        super().__init__(
            f"Job {job_id} was cancelled{because}: clean up and let this error through."
        )


class ResourceMissingError(AttemptError, LookupError):
    """``ctx.resource(T)`` asked for what the lifespan did not give."""

    code = "resource-missing"

    def __init__(self, wanted: type, given: Iterable[type]) -> None:
        """Tell that *wanted* is not among what was *given*."""
        self.wanted, self.given = wanted.__qualname__, [t.__qualname__ for t in given]
        super().__init__(
            f"There is no resource {self.wanted}: the lifespan of this Jobs registry "
            f"gives {', '.join(self.given) or 'nothing'}. Return it from "
            f"Jobs(lifespan=...) as {{{self.wanted}: ...}}."
        )


class SessionMissingError(AttemptError):
    """``ctx.session`` was used, but the worker was given no session factory."""

    code = "session-missing"

    def __init__(self, job: str, option: str) -> None:
        """Tell that *job* needs the worker's *option*."""
        self.job, self.option = job, option
        super().__init__(
            f"Job {job!r} needs a session: start the worker with {option}=..., the "
            f"session factory of the application."
        )
