"""Lists of jobs: pages by key, filters that match literally, no payloads."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import attrs
from sqlalchemy import (
    Integer,
    Uuid,
    case,
    func,
    literal,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.orm import aliased

from sqla_jobs.clock import UtcDateTime
from sqla_jobs.exc import InvalidOptionError
from sqla_jobs.inspect.reading import parted, readable
from sqla_jobs.inspect.results import (
    COUNT_LIMIT,
    DeadLetter,
    JobSummary,
    Page,
    Unreadable,
)
from sqla_jobs.models import Attempt, Job
from sqla_jobs.queue.selection import EVERY, JobFilter, last_attempt
from sqla_jobs.states import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import ColumnElement, Row, Select
    from sqlalchemy.orm import InstrumentedAttribute, Session

MAX_PAGE: Final = 1000
"""The longest page."""

ERROR_TAIL: Final = 500
"""Characters of an error in a list: the last ones, where a traceback says what it was."""

_ROW: Final = "row"
"""Stands for the time of a row in a page's ``next``: look it up in the row."""

SUMMARY: Final = tuple(getattr(Job, field.name) for field in attrs.fields(JobSummary))
"""The columns of a :class:`.JobSummary`."""


def jobs(
    session: Session,
    *,
    filters: JobFilter = EVERY,
    after: str | None = None,
    limit: int = 50,
) -> Page[JobSummary]:
    """Return a page of jobs, the newest first.

    Emits one SELECT that walks the ids downwards, so a page costs the same wherever it
    is (and one for each row of the page, when one of them cannot be decoded).
    :exc:`.InvalidOptionError` for an *after* that is no place in this list, and for a
    *limit* outside 1 to 1000.
    """
    statement = (
        select(*SUMMARY)
        .where(*filters.criteria())
        .order_by(Job.id.desc())
        .limit(_checked(limit) + 1)
    )
    if after is not None:
        statement = statement.where(Job.id < _id_of(after))
    found = readable(session, statement, Job.id)
    rows, bad = parted(found[:limit])
    place = str(found[limit - 1].id) if len(found) > limit else None
    return Page([JobSummary(**facts(row)) for row in rows], place, bad)


def count(session: Session, filters: JobFilter = EVERY) -> int:
    """Return how many jobs *filters* choose, at most :data:`.COUNT_LIMIT`.

    Emits one SELECT.
    """
    one = literal_column("1", Integer)
    matching = select(one).select_from(Job).where(*filters.criteria())
    bounded = matching.limit(COUNT_LIMIT).subquery()
    return session.execute(select(func.count()).select_from(bounded)).scalar_one()


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
    statement = dead(SUMMARY, filters).limit(_checked(limit) + 1)
    if after is not None:
        statement = statement.where(_before(after))
    found = readable(session, statement, Job.id)
    rows, bad = parted(found[:limit])
    place = _place(found[limit - 1]) if len(found) > limit else None
    return Page([DeadLetter(**facts(row)) for row in rows], place, bad)


def dead(columns: Iterable[Any], filters: JobFilter) -> Select[*tuple[Any, ...]]:
    """Return the query for *columns* and the error of dead jobs, the latest first."""
    return (
        select(
            *columns,
            last_attempt(Attempt.error_type).label("error_type"),
            last_attempt(_tail(Attempt.error)).label("error"),
        )
        .where(*attrs.evolve(filters, state=JobState.DEAD).criteria())
        .where(Job.finished_at.is_not(None))
        .order_by(Job.finished_at.desc(), Job.id.desc())
    )


def facts(row: Row[*tuple[Any, ...]]) -> dict[str, Any]:
    """Return *row* by its column names; the text of no tenant becomes None."""
    values = row._asdict()
    return {**values, "tenant": values["tenant"] or None}


def _tail(column: InstrumentedAttribute[str | None]) -> ColumnElement[str | None]:
    length = func.length(column)
    start = case((length > ERROR_TAIL, length - (ERROR_TAIL - 1)), else_=1)
    return func.substr(column, start)


def _checked(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidOptionError("limit", f"is {limit}: give 1 to {MAX_PAGE}")
    return limit


def _id_of(after: str) -> UUID:
    try:
        return UUID(after)
    except ValueError:
        raise _no_place(after) from None


def _place(last: Row[*tuple[Any, ...]] | Unreadable) -> str:
    if isinstance(last, Unreadable):
        return f"{_ROW}/{last.id}"  # What it holds as its time may be unreadable.
    return f"{last.finished_at.isoformat()}/{last.id}"


def _before(after: str) -> ColumnElement[bool]:
    instant, _, job_id = after.rpartition("/")
    here = tuple_(Job.finished_at, Job.id)
    if instant == _ROW:
        row = aliased(Job)
        died = select(row.finished_at).where(row.id == _id_of(job_id))
        return here < tuple_(died.scalar_subquery(), literal(_id_of(job_id), Uuid()))
    try:
        at = datetime.fromisoformat(instant)
    except ValueError:
        raise _no_place(after) from None
    if at.tzinfo is None:
        raise _no_place(after)
    place = tuple_(literal(at, UtcDateTime()), literal(_id_of(job_id), Uuid()))
    return here < place


def _no_place(after: str) -> InvalidOptionError:
    return InvalidOptionError(
        "after", f"is {after!r}, no place in this list: give a page's next"
    )
