"""Lists of jobs: pages by key, filters that match literally, no payloads."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import attrs
from sqlalchemy import Uuid, case, func, literal, or_, select, tuple_

from sqla_jobs.clock import UtcDateTime
from sqla_jobs.exc import InvalidOptionError
from sqla_jobs.inspect.results import DeadLetter, JobSummary, Page
from sqla_jobs.models import Attempt, Job
from sqla_jobs.states import JobState

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Row, Select
    from sqlalchemy.orm import InstrumentedAttribute, Session

MAX_PAGE: Final = 1000
"""The longest page."""

ERROR_TAIL: Final = 500
"""Characters of an error in a list: the last ones, where a traceback says what it was."""

SUMMARY: Final = tuple(getattr(Job, field.name) for field in attrs.fields(JobSummary))
"""The columns of a :class:`.JobSummary`."""


@attrs.frozen(kw_only=True)
class JobFilter:
    """Which jobs a list shows: those that match every given value, literally."""

    state: str | None = attrs.field(
        default=None, converter=attrs.converters.optional(JobState)
    )
    name: str | None = None
    queue: str | None = None
    tenant: str | None = None
    """The tenant's text; the empty text is ``NO_TENANT``."""
    key: str | None = None
    enqueued_by: str | None = None
    search: str | None = None
    """A part of the name or of the key; ``%`` and ``_`` are characters like others."""

    def criteria(self) -> list[ColumnElement[bool]]:
        """Return the conditions, for a WHERE clause."""
        found: list[ColumnElement[bool]] = [
            column == value
            for column, value in (
                (Job.name, self.name),
                (Job.queue, self.queue),
                (Job.tenant, self.tenant),
                (Job.key, self.key),
                (Job.enqueued_by, self.enqueued_by),
                (Job.state, None if self.state is None else str(self.state)),
            )
            if value is not None
        ]
        if self.search is not None:
            found.append(
                or_(
                    Job.name.contains(self.search, autoescape=True),
                    Job.key.contains(self.search, autoescape=True),
                )
            )
        return found


EVERY: Final = JobFilter()


def jobs(
    session: Session,
    *,
    filters: JobFilter = EVERY,
    after: str | None = None,
    limit: int = 50,
) -> Page[JobSummary]:
    """Return a page of jobs, the newest first.

    Emits one SELECT that walks the ids downwards, so a page costs the same wherever it
    is. :exc:`.InvalidOptionError` for an *after* that is no place in this list, and
    for a *limit* outside 1 to 1000.
    """
    statement = (
        select(*SUMMARY)
        .where(*filters.criteria())
        .order_by(Job.id.desc())
        .limit(_checked(limit) + 1)
    )
    if after is not None:
        statement = statement.where(Job.id < _id_of(after))
    items = [JobSummary(**facts(row)) for row in session.execute(statement)]
    more = len(items) > limit
    return Page(items[:limit], str(items[limit - 1].id) if more else None)


def dead_letters(
    session: Session,
    *,
    filters: JobFilter = EVERY,
    after: str | None = None,
    limit: int = 50,
) -> Page[DeadLetter]:
    """Return a page of dead jobs with their last error, the latest death first.

    Emits one SELECT. ``filters.state`` does not count. Errors as :func:`jobs`.
    """
    statement = (
        select(*SUMMARY, _last(Attempt.error_type), _last(_tail(Attempt.error)))
        .where(*attrs.evolve(filters, state=JobState.DEAD).criteria())
        .where(Job.finished_at.is_not(None))
        .order_by(Job.finished_at.desc(), Job.id.desc())
        .limit(_checked(limit) + 1)
    )
    if after is not None:
        statement = statement.where(_before(after))
    items = [DeadLetter(**facts(row)) for row in session.execute(statement)]
    if len(items) <= limit:
        return Page(items, None)
    last = items[limit - 1]
    assert last.finished_at is not None  # noqa: S101 - the table's check
    return Page(items[:limit], f"{last.finished_at.isoformat()}/{last.id}")


def facts(row: Row[*tuple[Any, ...]]) -> dict[str, Any]:
    """Return *row* by its column names; the text of no tenant becomes None."""
    values = row._asdict()
    return {**values, "tenant": values["tenant"] or None}


def _tail(column: InstrumentedAttribute[str | None]) -> ColumnElement[str | None]:
    length = func.length(column)
    start = case((length > ERROR_TAIL, length - (ERROR_TAIL - 1)), else_=1)
    return func.substr(column, start).label(column.key)


def _last(
    column: InstrumentedAttribute[str | None] | ColumnElement[str | None],
) -> ColumnElement[str | None]:
    # One descent of the attempts' primary key per row of the page.
    newest: Select[str | None] = (
        select(column)
        .where(Attempt.job_id == Job.id)
        .order_by(Attempt.fence.desc())
        .limit(1)
    )
    return newest.scalar_subquery().label(column.key)


def _checked(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidOptionError("limit", f"is {limit}: give 1 to {MAX_PAGE}")
    return limit


def _id_of(after: str) -> UUID:
    try:
        return UUID(after)
    except ValueError:
        raise _no_place(after) from None


def _before(after: str) -> ColumnElement[bool]:
    instant, _, job_id = after.rpartition("/")
    try:
        at = datetime.fromisoformat(instant)
    except ValueError:
        raise _no_place(after) from None
    if at.tzinfo is None:
        raise _no_place(after)
    place = tuple_(literal(at, UtcDateTime()), literal(_id_of(job_id), Uuid()))
    return tuple_(Job.finished_at, Job.id) < place


def _no_place(after: str) -> InvalidOptionError:
    return InvalidOptionError(
        "after", f"is {after!r}, no place in this list: give a page's next"
    )
