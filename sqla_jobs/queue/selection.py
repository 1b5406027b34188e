"""Which jobs: a filter whose texts match literally, for lists and for changes alike."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

import attrs
from sqlalchemy import Boolean, func, literal_column, or_, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqla_jobs.declare.text import bad_character
from sqla_jobs.exc import InvalidOptionError
from sqla_jobs.models import Attempt, Job
from sqla_jobs.queue.changes import Change, possible
from sqla_jobs.states import JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import InstrumentedAttribute
    from sqlalchemy.sql.compiler import SQLCompiler


class _Holds(FunctionElement[bool]):
    """Whether the first argument, a text, holds the second, letter for letter."""

    type = Boolean()
    inherit_cache = True


# Not LIKE: in SQLite it takes "A" for "a", whatever is escaped.
_POSITION: Final = {"postgresql": "strpos", "sqlite": "instr"}


@compiles(_Holds)
def _compile_holds(element: _Holds, compiler: SQLCompiler, **kw: object) -> str:
    arguments = compiler.process(element.clause_expr.element, **kw)
    return f"({_POSITION[compiler.dialect.name]}({arguments}) > 0)"


def last_attempt(
    column: InstrumentedAttribute[str | None] | ColumnElement[str | None],
) -> ColumnElement[str | None]:
    """Return *column* of the newest recorded attempt of the current job."""
    # One descent of the attempts' primary key per row.
    return (
        select(column)
        .where(Attempt.job_id == Job.id)
        .order_by(Attempt.fence.desc())
        .limit(1)
        .scalar_subquery()
    )


@attrs.frozen(kw_only=True)
class JobFilter:
    """Which jobs are meant: those that match every given value, letter for letter."""

    state: str | None = attrs.field(
        default=None, converter=attrs.converters.optional(JobState)
    )
    name: str | None = None
    queue: str | None = None
    tenant: str | None = None
    """The tenant's text; the empty text is ``NO_TENANT``."""
    key: str | None = None
    key_prefix: str | None = None
    """What the key begins with."""
    enqueued_by: str | None = None
    search: str | None = None
    """A part of the name or of the key; ``%`` and ``_`` are characters like others."""
    error: str | None = None
    """A part of the last attempt's error, or of its type."""
    created_since: datetime | None = None
    created_until: datetime | None = None
    """Before this instant, which does not belong to it; so too the next one."""
    finished_since: datetime | None = None
    finished_until: datetime | None = None
    open_to: Change | None = None
    """Only jobs to which this can be done, and to which it has not been done."""

    def __attrs_post_init__(self) -> None:
        """Refuse what no row can hold: the database's own error would say less."""
        for name, value in attrs.asdict(self).items():
            bad = bad_character(value) if isinstance(value, str) else None
            if bad is not None:
                raise InvalidOptionError(name, f"contains {bad}")
            if isinstance(value, datetime) and value.tzinfo is None:
                raise InvalidOptionError(name, f"is {value}, without a time zone")

    def criteria(self) -> list[ColumnElement[bool]]:
        """Return the conditions, for a WHERE clause."""
        return [
            build(value)
            for name, build in _CONDITIONS.items()
            if (value := getattr(self, name)) is not None
        ]


def _has_error(text: str) -> ColumnElement[bool]:
    kind, said = last_attempt(Attempt.error_type), last_attempt(Attempt.error)
    return or_(_Holds(kind, text), _Holds(said, text))


def _in_state(state: str) -> ColumnElement[bool]:
    # A literal (it is one of ours): a partial index is only used when the planner can
    # read its predicate.
    return Job.state == literal_column(f"'{JobState(state).value}'")


_CONDITIONS: Final[dict[str, Callable[..., ColumnElement[bool]]]] = {
    "state": _in_state,
    "name": lambda name: Job.name == name,
    "queue": lambda queue: Job.queue == queue,
    "tenant": lambda tenant: Job.tenant == tenant,
    "key": lambda key: Job.key == key,
    "key_prefix": lambda start: func.substr(Job.key, 1, len(start)) == start,
    "enqueued_by": lambda who: Job.enqueued_by == who,
    "search": lambda text: or_(_Holds(Job.name, text), _Holds(Job.key, text)),
    "error": _has_error,
    "created_since": lambda at: Job.created_at >= at,
    "created_until": lambda at: Job.created_at < at,
    "finished_since": lambda at: Job.finished_at >= at,
    "finished_until": lambda at: Job.finished_at < at,
    "open_to": possible,
}

EVERY: Final = JobFilter()
"""All jobs."""
