"""A worker or a database cannot do its work."""

from __future__ import annotations

from sqla_jobs.exc.base import JobsError


class WorkerConfigError(JobsError):
    """A worker was configured in a way that cannot work; nothing was started."""

    code = "worker-config"

    def __init__(self, reason: str, remedy: str) -> None:
        """Tell the *reason* and the *remedy*."""
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}: {remedy}.")


class WorkerStuckError(JobsError):
    """Too many threads of a worker are held by attempts that were given up."""

    code = "worker-stuck"

    def __init__(self, stuck: int) -> None:
        """Tell that *stuck* attempts never came back after their timeout."""
        self.stuck = stuck
        super().__init__(
            f"{stuck} attempts were given up and their handlers have not come back, so "
            f"this process was stopped: start it again (a supervisor does), and give "
            f"what those handlers wait for a timeout of its own."
        )


class RunRefusedError(JobsError):
    """A job cannot be run inline in the way that :mod:`sqla_jobs.testing` was asked."""

    code = "run-refused"

    def __init__(self, reason: str, remedy: str) -> None:
        """Tell the *reason* and the *remedy*."""
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}: {remedy}.")


class DatabaseUnavailableError(JobsError):
    """The database cannot be reached, or is read-only."""

    code = "database-unavailable"

    def __init__(self, what: str, reason: str) -> None:
        """Tell that *what* failed for *reason*."""
        self.what, self.reason = what, reason
        super().__init__(
            f"{what}: {reason}. Check the URL, the network and whether the server "
            f"accepts writes."
        )


class SchemaVersionError(JobsError):
    """The tables and the code are too far apart."""

    code = "schema-version"

    def __init__(self, found: str, needed: str, remedy: str) -> None:
        """Tell what was *found*, what is *needed* and the *remedy*."""
        self.found, self.needed, self.remedy = found, needed, remedy
        super().__init__(f"{found}, but {needed}: {remedy}.")


class SchemaStepError(JobsError, ValueError):
    """A migration names a version of the tables that does not exist."""

    code = "schema-step"

    def __init__(self, given: str, newest: int) -> None:
        """Tell that *given* is no version; *newest* is the last one there is."""
        self.given, self.newest = given, newest
        super().__init__(
            f"{given} is no version of sqla_jobs' tables: this package knows 0 (none) "
            f"to {newest}. In SQL that is only printed, give since= as well."
        )
