"""A backfill cannot run, or has not run to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqla_jobs.exc.base import JobsError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

RUN = "sqla-jobs backfill run"


class BackfillError(JobsError):
    """Base of the errors about backfills."""

    code = "backfill"


class MigrationsUnreadableError(BackfillError):
    """Alembic's folder is not there, or cannot be read."""

    code = "migrations-unreadable"

    def __init__(self, place: str, reason: str) -> None:
        """Tell the *reason* why *place* cannot be read."""
        self.place, self.reason = place, reason
        super().__init__(
            f"The migrations at {place} cannot be read: {reason}: name alembic.ini or "
            f"its script folder with --alembic or SQLA_JOBS_ALEMBIC."
        )


class BackfillUnknownError(BackfillError, LookupError):
    """No such backfill is declared."""

    code = "backfill-unknown"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        """Tell that *name* is none of *known*."""
        self.name, self.known = name, sorted(known)
        there = ", ".join(self.known) or "none"
        super().__init__(f"There is no backfill {name!r}; there are: {there}.")


class BackfillEnvironmentError(BackfillError):
    """The backfill may not run in this environment."""

    code = "backfill-environment"

    def __init__(self, name: str, environment: str | None, allowed: set[str]) -> None:
        """Tell that *environment* is none of *allowed*."""
        self.name, self.environment, self.allowed = name, environment, sorted(allowed)
        here = "which is not set" if environment is None else f"not {environment!r}"
        super().__init__(
            f"Backfill {name!r} runs in {', '.join(self.allowed)} alone, {here}: set "
            f"SQLA_JOBS_ENVIRONMENT to the environment that this database is of."
        )


class BackfillAppliedError(BackfillError):
    """The backfill is done or was skipped."""

    code = "backfill-applied"

    def __init__(self, name: str, status: str) -> None:
        """Tell that *name* is *status*."""
        self.name, self.status = name, status
        super().__init__(f"Backfill {name!r} is {status}: nothing is left to do.")


class BackfillRunningError(BackfillError):
    """Somebody runs the backfill."""

    code = "backfill-running"

    def __init__(self, name: str, holder: str | None, until: datetime | None) -> None:
        """Tell that *holder* runs *name*, with a lease that ends at *until*."""
        self.name, self.holder, self.until = name, holder, until
        super().__init__(
            f"Backfill {name!r} is run by {holder or 'somebody'}: see it with "
            f"`sqla-jobs backfill status {name}`, or stop it with "
            f"`sqla-jobs backfill pause {name}`."
        )


class BackfillMigrationPendingError(BackfillError):
    """The migrations are not where the backfill needs them."""

    code = "backfill-migration-pending"

    def __init__(
        self, name: str, reason: str, detail: str, commands: Iterable[str]
    ) -> None:
        """Tell the *reason* (``after``, ``version-table-missing``, ``ahead``)."""
        self.name, self.reason, self.commands = name, reason, list(commands)
        how = " then ".join(f"`{command}`" for command in self.commands)
        run = f"run {how}." if how else "mend that first."
        super().__init__(f"Backfill {name!r} cannot run: {detail}: {run}")


class BackfillPendingError(BackfillError):
    """A migration waits for the backfill."""

    code = "backfill-pending"

    def __init__(
        self, name: str, reason: str, detail: str, commands: Iterable[str]
    ) -> None:
        """Tell the *reason* (``never``, ``not-done``, ``rows-remain``, ``offline``)."""
        self.name, self.reason, self.commands = name, reason, list(commands)
        how = ", then ".join(f"`{command}`" for command in self.commands)
        super().__init__(
            f"This migration waits for the backfill {name!r}, which {detail}: run "
            f"{how}, and upgrade again."
        )


class BackfillStatusError(BackfillError):
    """The backfill is not in a status from which that can be done."""

    code = "backfill-status"

    def __init__(self, name: str, status: str, remedy: str) -> None:
        """Tell that *name* is *status*, and the *remedy*."""
        self.name, self.status = name, status
        super().__init__(f"Backfill {name!r} is {status}: {remedy}.")


class BackfillLostError(BackfillError):
    """The run has lost its backfill: another one took it over."""

    code = "backfill-lost"

    def __init__(self, name: str) -> None:
        """Tell that *name* is somebody else's by now."""
        self.name = name
        super().__init__(
            f"Backfill {name!r} was taken over or steered meanwhile; the batch in hand "
            f"was rolled back: see `sqla-jobs backfill status {name}`."
        )


class BackfillFailedError(BackfillError):
    """A batch failed, and the backfill stopped there."""

    code = "backfill-failed"

    def __init__(self, name: str, reason: str) -> None:
        """Tell the *reason* why *name* stopped."""
        self.name, self.reason = name, reason
        super().__init__(
            f"Backfill {name!r} stopped: {reason}; what was committed before stays. "
            f"Mend the cause, then `{RUN} {name}` goes on where it stopped."
        )
