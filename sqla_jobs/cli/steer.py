"""Cancel, retry and discard: by ids, or all jobs that the options choose.

Each id is a transaction by itself, and so is each batch: one that is refused, or an
interruption, does not take back what was done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import attrs
import click
from sqlalchemy import select

from sqla_jobs import inspect
from sqla_jobs.cli import json, tables
from sqla_jobs.cli.command import REFUSED, Place, json_option
from sqla_jobs.cli.lists import chosen, job_cells, job_columns
from sqla_jobs.exc import (
    JobNotDiscardableError,
    JobNotFoundError,
    JobNotRetryableError,
    JobsError,
)
from sqla_jobs.models import Job
from sqla_jobs.queue.bulk import change_jobs
from sqla_jobs.queue.changes import Change
from sqla_jobs.queue.control import cancel_job, discard_job, retry_job
from sqla_jobs.states import JobState

if TYPE_CHECKING:
    from sqla_jobs.inspect import JobFilter
    from sqla_jobs.session import JobSession

F = TypeVar("F", bound=Callable[..., Any])

SAMPLE: Final = 5
"""Jobs shown before people say yes."""
REPORT_EVERY: Final = 1.0
"""Seconds between two reports of progress."""
BECAME: Final = {
    Change.CANCEL: "cancelled",
    Change.RETRY: "ready",
    Change.DISCARD: "discarded",
}


def steer_options(command: F) -> F:
    """Add what the verbs share beside filters: ids, ``--all``, how to be asked."""
    for decorate in (
        json_option,
        click.option(
            "--dry-run", is_flag=True, help="Show which jobs it would be; change none."
        ),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        click.option(
            "--all", "every", is_flag=True, help="All jobs that the options choose."
        ),
        click.argument("ids", metavar="[ID]...", nargs=-1, type=click.UUID),
    ):
        command = decorate(command)
    return command


@attrs.frozen(kw_only=True)
class Steering:
    """One call of a verb."""

    place: Place
    change: Change
    ids: Sequence[UUID]
    every: bool
    yes: bool
    dry_run: bool
    as_json: bool
    options: Mapping[str, Any]
    """What chooses jobs, by the names of :func:`.filter_options`."""
    state: str | None = None
    reason: str | None = None
    dead: bool = False
    """Only dead letters."""

    def run(self) -> None:
        """Do it, tell it, and exit with 1 when anything was refused."""
        if self.every is bool(self.ids):
            raise click.UsageError("Give the ids of jobs, or --all.")
        if self.ids:
            given = [self.state, self.dry_run or None, *self.options.values()]
            if any(value is not None for value in given):
                raise click.UsageError("Options that choose jobs go with --all.")
            self._each()
            return
        if self.change is not Change.CANCEL and self.state is None and not self.dead:
            raise click.UsageError(
                f"Say which finished jobs: --state {', '.join(_FINISHED)}."
            )
        if not (self.yes or self.dry_run) and (self.as_json or not _asks()):
            raise click.UsageError("Nobody can be asked here: give --yes or --dry-run.")
        self._all()

    # --- one by one ------------------------------------------------------------------

    def _each(self) -> None:
        changed: list[dict[str, str]] = []
        refused: list[dict[str, str]] = []
        with self.place.open() as session:
            for job_id in dict.fromkeys(self.ids):
                try:
                    state = self._one(session, job_id)
                except JobsError as error:
                    session.rollback()
                    fact = {"code": error.code, "message": str(error)}
                    refused.append({"id": str(job_id), **fact})
                    click.echo(f"Refused: {error}", err=True)
                else:
                    changed.append({"id": str(job_id), "state": state})
                    if not self.as_json:
                        click.echo(_sentence(job_id, state))
        if self.as_json:
            json.write({"changed": changed, "refused": refused})
        if refused:
            click.get_current_context().exit(REFUSED)

    def _one(self, session: JobSession, job_id: UUID) -> str:
        """Change one job and commit; return what it is now."""
        if self.dead:  # the other finished ones are for `jobs`
            state = _state(session, job_id)
            if state is None:
                raise JobNotFoundError(job_id)
            if state != JobState.DEAD:
                raise _REFUSALS[self.change](job_id, state)
        match self.change:
            case Change.CANCEL:
                cancel_job(session, job_id, reason=self.reason)
                session.commit()
                running = _state(session, job_id) == JobState.RUNNING
                return JobState.RUNNING if running else JobState.CANCELLED
            case Change.RETRY:
                retry_job(session, job_id)
            case Change.DISCARD:
                discard_job(session, job_id)
        session.commit()
        return BECAME[self.change]

    # --- all that the options choose ---------------------------------------------------

    def _all(self) -> None:
        with self.place.look() as session:
            filters = chosen(
                session,
                self.options,
                state=JobState.DEAD if self.dead else self.state,
                time="finished" if self.dead else "created",
            )
            meant = attrs.evolve(filters, open_to=self.change)
            matched = inspect.count(session, meant)
            page = inspect.jobs(session, filters=meant, limit=SAMPLE)
        # No transaction is open while people think.
        if not self.as_json:
            _preview(page, matched, self.change)
        if not matched or self.dry_run:
            if self.as_json:
                json.write({"matched": matched, "changed": 0, "stopping": 0, "left": 0})
            return
        if not self.yes and not click.confirm(f"{self.change.capitalize()} them?"):
            click.echo("Nothing was changed.", err=True)
            click.get_current_context().exit(REFUSED)
        shown = [job.id for job in page.items] + [row.id for row in page.unreadable]
        self._sweep(filters, matched, newest=max(shown))

    def _sweep(self, filters: JobFilter, matched: int, *, newest: UUID) -> None:
        done = Done()
        try:
            with self.place.open() as session:
                self._pass(session, filters, newest, done)
                if done.left:
                    # Others held or changed them; by now they may have let go.
                    done.left = 0
                    self._pass(session, filters, newest, done)
        except BaseException:
            done.tell(self.change)
            click.echo("The rest was not looked at: run it again.", err=True)
            raise
        if self.as_json:
            json.write({"matched": matched, **attrs.asdict(done)})
        else:
            done.tell(self.change)
        if done.left:
            jobs = _jobs(done.left)
            click.echo(
                f"{jobs} left: another transaction holds the row. Run it again.",
                err=True,
            )
            click.get_current_context().exit(REFUSED)

    def _pass(
        self, session: JobSession, filters: JobFilter, newest: UUID, done: Done
    ) -> None:
        after: UUID | None = None
        reported = time.monotonic()
        while True:
            batch = change_jobs(
                session,
                self.change,
                filters,
                reason=self.reason,
                after=after,
                until=newest,
            )
            session.commit()
            done.changed += batch.count
            done.stopping += batch.stopping
            done.left += batch.left
            after = batch.next
            if after is None:
                return
            if time.monotonic() - reported > REPORT_EVERY:
                reported = time.monotonic()
                click.echo(f"… {done.changed:,}", err=True)


def steer(
    change: Change,
    *,
    place: Place,
    ids: Sequence[UUID],
    every: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    state: str | None = None,
    reason: str | None = None,
    dead: bool = False,
    **options: Any,  # noqa: ANN401 - click's parameters
) -> None:
    """Do *change* as the command line says; see :class:`Steering`."""
    Steering(
        place=place,
        change=change,
        ids=ids,
        every=every,
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
        options=options,
        state=state,
        reason=reason,
        dead=dead,
    ).run()


@attrs.define
class Done:
    """What was done so far."""

    changed: int = 0
    stopping: int = 0
    left: int = 0

    def tell(self, change: Change) -> None:
        """Print it."""
        ended = self.changed - self.stopping
        if ended or not self.stopping:
            verb = "is" if ended == 1 else "are"
            click.echo(f"{_jobs(ended)} {verb} {BECAME[change]}")
        if self.stopping:
            verb = (
                "is running and was" if self.stopping == 1 else "are running and were"
            )
            click.echo(f"{_jobs(self.stopping)} {verb} asked to stop")


_FINISHED: Final = (JobState.DEAD, JobState.CANCELLED, JobState.SUCCEEDED)
_REFUSALS: Final = {
    Change.RETRY: JobNotRetryableError,
    Change.DISCARD: JobNotDiscardableError,
}


def _asks() -> bool:
    return sys.stdin.isatty()


def _state(session: JobSession, job_id: UUID) -> str | None:
    return session.scalar(select(Job.state).where(Job.id == job_id))


def _sentence(job_id: UUID, state: str) -> str:
    if state == JobState.RUNNING:
        return f"{job_id} is running and was asked to stop"
    return f"{job_id} is {state}"


def _jobs(number: int) -> str:
    return f"{number:,} job" if number == 1 else f"{number:,} jobs"


def _preview(
    page: inspect.Page[inspect.JobSummary], matched: int, change: Change
) -> None:
    if not matched:
        click.echo("No jobs match: nothing is changed.")
        return
    made = tables.table(*job_columns(), "state")
    for job in page.items:
        made.add_row(*job_cells(job), tables.state(job.state))
    tables.show(made, "None of them can be read.")
    more = matched - len(page.items)
    if more > 0:
        click.echo(f"and {tables.count(more)} more")
    what = "job" if matched == 1 else "jobs"
    click.echo(f"{tables.count(matched)} {what} to {change}.")
