"""Removing jobs that finished long ago; an unfinished job is never touched."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

import attrs
from sqlalchemy import Uuid, delete, literal, select, tuple_

from sqla_jobs import clock
from sqla_jobs.clock import UtcDateTime
from sqla_jobs.declare.registry import RETAIN_DEAD
from sqla_jobs.dialects.base import job_connection
from sqla_jobs.models import Job
from sqla_jobs.queue.changes import delete_children
from sqla_jobs.states import JobState

if TYPE_CHECKING:
    from sqlalchemy import Row
    from sqlalchemy.orm import Session

    from sqla_jobs.declare.registry import Jobs

Place = tuple[datetime, str]
"""A place in the order of finishing: ``(finished_at, id)``."""


@attrs.frozen(kw_only=True)
class Retention:
    """How long a job's row outlives its end."""

    finished: timedelta = timedelta(days=7)
    """After success or cancel: the window in which its key is a duplicate."""
    dead: timedelta = RETAIN_DEAD
    """After the last failure."""


DEFAULT: Final = Retention()


@attrs.frozen(kw_only=True)
class RetentionRules:
    """The retention of each job name; ``default`` is for all that are not named."""

    default: Retention = DEFAULT
    names: Mapping[str, Retention] = attrs.Factory(dict)

    @classmethod
    def of(cls, jobs: Jobs) -> Self:
        """Return what the registry *jobs* declares.

        Rows whose names it does not know are kept as long as its defaults say.
        """
        return cls(
            default=Retention(finished=jobs.retain, dead=max(jobs.retain, RETAIN_DEAD)),
            names={
                name: Retention(finished=spec.retain, dead=spec.retain_dead)
                for name, spec in jobs.specs.items()
            },
        )

    def shortest(self) -> timedelta:
        """Return the age below which no job is removed, whatever it is."""
        kept = (self.default, *self.names.values())
        return min(min(each.finished, each.dead) for each in kept)

    def expired(self, name: str, state: str, age: timedelta) -> bool:
        """Return whether a job *name* that ended as *state* is removed at *age*."""
        kept = self.names.get(name, self.default)
        if state == JobState.DEAD:
            return age > kept.dead
        return age > kept.finished


@attrs.frozen
class Pruned:
    """What one call of :func:`prune` did."""

    count: int
    """Jobs removed."""
    next: Place | None
    """Where to go on; None: all was looked at, start over another time."""


def prune(
    session: Session,
    rules: RetentionRules,
    *,
    after: Place | None = None,
    limit: int = 1000,
) -> Pruned:
    """Look at *limit* finished jobs in the order of finishing; remove the expired ones.

    Rows that are kept longer than others stand in front for ever, so the look begins
    *after* the place where the last one stopped. Children go in the same transaction,
    which is the caller's. Rows that others hold are left for the next round.
    """
    connection = job_connection(session)
    # The time as a value: intervals in SQL differ between databases, and a constant
    # bound lets the index on (finished_at, id) end the scan.
    now = connection.scalar(select(clock.now()))
    assert now is not None  # noqa: S101 - SELECT of an expression gives one row
    facts = select(Job.id, Job.name, Job.state, Job.finished_at)
    page = (
        facts.where(Job.finished_at.is_not(None))
        .where(Job.finished_at < literal(now - rules.shortest(), UtcDateTime()))
        .order_by(Job.finished_at, Job.id)
        .limit(limit)
    )
    if after is not None:
        at, job_id = after
        place = tuple_(literal(at, UtcDateTime()), literal(UUID(job_id), Uuid()))
        page = page.where(tuple_(Job.finished_at, Job.id) > place)
    seen = connection.execute(page).all()

    def expired(row: Row[UUID, str, str, datetime | None]) -> bool:
        finished = row.finished_at
        return finished is not None and rules.expired(
            row.name, row.state, now - finished
        )

    doomed = [row.id for row in seen if expired(row)]
    if doomed:
        # Between the look and the lock a job may have been retried, or even have
        # finished again: what counts is the locked row. Locks in id order; with one
        # writer there is nothing to lock and nobody in between.
        locked = connection.execute(
            facts.where(Job.id.in_(doomed))
            .order_by(Job.id)
            .with_for_update(skip_locked=True)
        )
        doomed = [row.id for row in locked if expired(row)]
    if doomed:
        connection.execute(delete(Job).where(Job.id.in_(doomed)))
        delete_children(connection, doomed)
    if len(seen) < limit:
        return Pruned(len(doomed), None)
    return Pruned(len(doomed), (seen[-1].finished_at, str(seen[-1].id)))
