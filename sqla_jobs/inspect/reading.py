"""Reading rows so that one that cannot be decoded does not hide the others.

A row changed by hand can hold what no column type reads: a timestamp after the year
9999, a text that is no date. The error comes while the result is fetched and takes the
whole page with it, so the page is then read row by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DataError, DBAPIError

from sqla_jobs.exc import RowUnreadableError
from sqla_jobs.inspect.results import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from sqlalchemy import Row, Select
    from sqlalchemy.orm import InstrumentedAttribute, Session

UNDECODABLE: Final = (ValueError, TypeError, OverflowError, DataError)
"""What the drivers and the column types raise for a value that they cannot read."""


def readable(
    session: Session,
    statement: Select[*tuple[Any, ...]],
    key: InstrumentedAttribute[UUID],
) -> Sequence[Row[*tuple[Any, ...]] | Unreadable]:
    """Return the rows of *statement* in order; what cannot be decoded says why.

    :param key: the column whose value names a row.
    """
    try:
        return session.execute(statement).all()
    except UNDECODABLE:
        pass
    found: list[Row[*tuple[Any, ...]] | Unreadable] = []
    names = statement.with_only_columns(key, maintain_column_froms=True)
    for name in session.scalars(names).all():
        try:
            found += session.execute(statement.where(key == name)).all()
        except UNDECODABLE as error:
            found.append(Unreadable(name, reason_of(error)))
    return found


def parted(
    found: Iterable[Row[*tuple[Any, ...]] | Unreadable],
) -> tuple[list[Row[*tuple[Any, ...]]], list[Unreadable]]:
    """Return the rows of :func:`readable` and the others, each in order."""
    rows, bad = [], []
    for each in found:
        if isinstance(each, Unreadable):
            bad.append(each)
        else:
            rows.append(each)
    return rows, bad


def decoded(
    session: Session, job_id: UUID, statement: Select[*tuple[Any, ...]]
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return the rows of *statement*, which are about one job, all of them or none.

    :raises RowUnreadableError: one cannot be decoded.
    """
    try:
        return session.execute(statement).all()
    except UNDECODABLE as error:
        raise RowUnreadableError(job_id, reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """Return what *error* says, without the statement that SQLAlchemy adds to it."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    first = str(cause).strip().partition("\n")[0]
    return f"{type(cause).__name__}: {first}" if first else type(cause).__name__
