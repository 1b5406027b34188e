"""A job cannot be read, or is not in the state that was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqla_jobs.exc.base import JobsError

if TYPE_CHECKING:
    from uuid import UUID


class JobNotFoundError(JobsError, LookupError):
    """No such job; it never existed, or retention removed it."""

    code = "job-not-found"

    def __init__(self, job_id: UUID | str) -> None:
        """Tell that there is no job *job_id*."""
        self.job_id = job_id
        super().__init__(
            f"There is no job {job_id}: it never existed, its transaction rolled back, "
            f"or retention has removed it."
        )


class JobNotCancellableError(JobsError):
    """The cancel came too late."""

    code = "not-cancellable"

    def __init__(self, job_id: UUID, state: str) -> None:
        """Tell that *job_id* is *state* already."""
        self.job_id, self.state = job_id, state
        super().__init__(
            f"Job {job_id} is {state} already: only a ready, waiting or running job "
            f"can be cancelled."
        )


class JobNotRetryableError(JobsError):
    """The job is not in a state from which an operator can retry it."""

    code = "not-retryable"

    def __init__(self, job_id: UUID, state: str) -> None:
        """Tell that *job_id* is *state*."""
        self.job_id, self.state = job_id, state
        super().__init__(
            f"Job {job_id} is {state}: only a dead, cancelled or succeeded job can be "
            f"retried; a ready or running one is on its way already."
        )


class JobNotDiscardableError(JobsError):
    """The job is not in a state from which an operator can discard it."""

    code = "not-discardable"

    def __init__(self, job_id: UUID, state: str) -> None:
        """Tell that *job_id* is *state*."""
        self.job_id, self.state = job_id, state
        super().__init__(
            f"Job {job_id} is {state}: only a finished job can be discarded; cancel it "
            f"first."
        )


class RowUnreadableError(JobsError):
    """A job's row, or one of its attempts', holds what cannot be decoded."""

    code = "row-unreadable"

    def __init__(self, job_id: UUID, reason: str) -> None:
        """Tell the *reason* why *job_id* cannot be shown."""
        self.job_id, self.reason = job_id, reason
        remedy = "repair its rows, or discard it"
        super().__init__(f"Job {job_id} cannot be read ({reason}): {remedy}.")
