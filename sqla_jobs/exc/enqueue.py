"""What an enqueue refuses: a payload, a duplicate, a database or its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqla_jobs.exc.base import JobsError

if TYPE_CHECKING:
    from uuid import UUID


class JobNotDeclaredError(JobsError, LookupError):
    """A name or handle does not belong to the registry that was asked."""

    code = "not-declared"

    def __init__(self, job: str, reason: str = "is not declared here") -> None:
        """Tell that *job* cannot be used for *reason*."""
        self.job, self.reason = job, reason
        super().__init__(
            f"Job {job!r} {reason}: import the module that declares it before the "
            f"registry is used, and include() registries of other modules."
        )


class PayloadError(JobsError, ValueError):
    """An input or output cannot be stored, or a stored one cannot be read."""

    code = "payload"

    def __init__(self, path: str, reason: str) -> None:
        """Tell that the value at *path* was refused for *reason*."""
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


class EnqueueError(JobsError):
    """An enqueue was refused; nothing of it was written."""

    code = "enqueue"


class NotWrittenError(EnqueueError):
    """A handle was asked for what only the database knows, before the write."""

    code = "not-written"

    def __init__(self, job: str, asked: str) -> None:
        """Tell that *asked* of the pending *job* is unknown before the write."""
        self.job, self.asked = job, asked
        super().__init__(
            f"Job {job!r} is not written yet, so its {asked} is unknown: read it after "
            f"the commit, or call session.write_jobs() first."
        )


class DuplicateJobError(EnqueueError):
    """``on_duplicate='error'`` met a job with the same identity."""

    code = "duplicate"

    def __init__(self, job: str, key: str, job_id: UUID, state: str) -> None:
        """Tell which job (*job_id*, now *state*) holds *key* already."""
        self.job, self.key, self.job_id, self.state = job, key, job_id, state
        super().__init__(
            f"Job {job!r} with key {key!r} exists already: {job_id} is {state}. Use "
            f"on_duplicate='keep', 'replace' or 'rerun' if that is no mistake."
        )


class JobIdTakenError(EnqueueError):
    """A new job's id belongs to another job: the insert would have been lost."""

    code = "id-taken"

    def __init__(self, job_id: UUID, job: str, key: str) -> None:
        """Tell that *job_id*, chosen for *job* and *key*, is another job's id."""
        self.job_id, self.job, self.key = job_id, job, key
        super().__init__(
            f"The id {job_id} chosen for job {job!r} with key {key!r} belongs to "
            f"another job: ids must not be reused or copied."
        )


class EnqueueConflictError(EnqueueError):
    """A duplicate vanished each time it was looked at; retry the transaction."""

    code = "conflict"

    def __init__(self, job: str, key: str, tries: int) -> None:
        """Tell that *job* with *key* could not be pinned down in *tries* tries."""
        self.job, self.key, self.tries = job, key, tries
        super().__init__(
            f"Job {job!r} with key {key!r} was neither inserted nor found in {tries} "
            f"tries: retry the transaction."
        )


class EnqueueArgumentError(EnqueueError, ValueError):
    """An argument of ``enqueue`` is not valid; raised by the call."""

    code = "enqueue-argument"

    def __init__(self, argument: str, value: object, reason: str) -> None:
        """Tell that *argument* was given as *value*, and the *reason* it is refused."""
        self.argument, self.value, self.reason = argument, repr(value)[:200], reason
        super().__init__(f"{argument}={self.value} {reason}.")


class EnqueueRoutingError(EnqueueError):
    """The session would write the job where it cannot or must not be."""

    code = "routing"

    def __init__(self, reason: str, remedy: str) -> None:
        """Tell the *reason* and the *remedy*."""
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}: {remedy}.")


class DatabaseUnsupportedError(JobsError):
    """The database is not one that the queue can live in."""

    code = "database-unsupported"

    def __init__(self, dialect: str, reason: str) -> None:
        """Tell why *dialect* cannot hold the queue."""
        self.dialect, self.reason = dialect, reason
        super().__init__(f"{dialect} cannot hold the queue: {reason}.")


class EngineUnsuitableError(JobsError):
    """The application's engine is set up so that its transactions cannot carry jobs."""

    code = "engine-unsuitable"

    def __init__(self, reason: str, remedy: str) -> None:
        """Tell the *reason* and the *remedy*."""
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}: {remedy}.")
