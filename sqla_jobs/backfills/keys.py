"""Walking a table by its key: the order, the place reached, and its form in the ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import attrs
from sqlalchemy import (
    ColumnElement,
    FromClause,
    and_,
    inspect,
    literal,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.orm import Mapper

from sqla_jobs.exc import InvalidOptionError

if TYPE_CHECKING:
    from sqlalchemy import Dialect, Select

    from sqla_jobs.declare.backfill import BackfillSpec

Key = tuple[Any, ...]

# The first class that fits: a datetime is a date as well.
_WRITTEN: Final[dict[type, tuple[str, Any, Any]]] = {
    int: ("int", int, int),
    str: ("str", str, str),
    UUID: ("uuid", str, UUID),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    Decimal: ("decimal", str, Decimal),
}
_READ: Final = {name: read for name, _, read in _WRITTEN.values()}


def dump_key(key: Key) -> list[list[Any]]:
    """Return *key* as JSON that tells the type of each part."""
    return [_dump(value) for value in key]


def _dump(value: object) -> list[Any]:
    for kind, (name, write, _) in _WRITTEN.items():
        if isinstance(value, kind) and not isinstance(value, bool):
            return [name, write(value)]
    raise TypeError(f"a key of type {type(value).__name__} cannot be stored")


def load_key(stored: Sequence[Sequence[Any]]) -> Key:
    """Return the key that :func:`dump_key` made *stored* of."""
    return tuple(_READ[name](value) for name, value in stored)


def key_text(key: Key) -> str:
    """Return *key* as one text, the same for equal keys."""
    return json.dumps(dump_key(key))


@attrs.frozen
class Target:
    """What a backfill walks through: a table, in the order of its primary key."""

    table: FromClause
    columns: Sequence[ColumnElement[Any]]
    where: ColumnElement[bool] | None
    """Which rows are still to do; None: all, at any time."""

    def beyond(self, key: Key | None) -> ColumnElement[bool] | None:
        """Return the condition for rows after *key*."""
        return None if key is None else self._side(key, after=True)

    def up_to(self, key: Key) -> ColumnElement[bool]:
        """Return the condition for rows not after *key*."""
        return self._side(key, after=False)

    def among(self, keys: Sequence[Key]) -> ColumnElement[bool]:
        """Return the condition for the rows with these *keys*."""
        if len(self.columns) == 1:
            return self.columns[0].in_([key[0] for key in keys])
        return tuple_(*self.columns).in_([tuple(key) for key in keys])

    def keys(self, after: Key | None, limit: int) -> Select[*tuple[Any, ...]]:
        """Return a select of the next *limit* keys that are still to do."""
        found = select(*self.columns).order_by(*self.columns).limit(limit)
        for condition in (self.beyond(after), self.where):
            if condition is not None:
                found = found.where(condition)
        return found

    def remain_sql(self, dialect: Dialect) -> str | None:
        """Return the SQL text that finds a row still to do; None: none can be told."""
        if self.where is None:
            return None
        some: Select[Any] = (
            select(literal_column("1")).select_from(self.table).where(self.where)
        )
        compiled = some.limit(1).compile(
            dialect=dialect, compile_kwargs={"literal_binds": True}
        )
        return str(compiled)

    def _side(self, key: Key, *, after: bool) -> ColumnElement[bool]:
        # A row value, so that a composite key is one range of its index.
        if len(self.columns) == 1:
            [column], [value] = self.columns, key
            bound = literal(value, column.type)
            return column > bound if after else column <= bound
        types = [column.type for column in self.columns]
        left = tuple_(*self.columns)
        right = tuple_(
            *(literal(v, t) for v, t in zip(key, types, strict=True)), types=types
        )
        return left > right if after else left <= right


def target_of(spec: BackfillSpec) -> Target:
    """Return what *spec* walks through.

    Raises :exc:`.InvalidOptionError` for rows that are not those of one mapped class.
    """
    table: FromClause
    columns: list[ColumnElement[Any]]
    if spec.statement is not None:
        table = spec.statement.table
        columns = list(table.primary_key)
        criteria = spec.statement._where_criteria
    elif spec.rows is None:
        raise InvalidOptionError("rows", "is missing")
    else:
        described = spec.rows.column_descriptions
        mapper = inspect(described[0]["expr"], raiseerr=False) if described else None
        if len(described) != 1 or not isinstance(mapper, Mapper):
            raise InvalidOptionError("rows", "is no select of one mapped class")
        froms = spec.rows.get_final_froms()
        alone = len(froms) == 1 and froms[0] is mapper.local_table
        if not alone or spec.rows._limit_clause is not None:
            raise InvalidOptionError("rows", "has a join, an alias or a limit")
        table, criteria = mapper.local_table, spec.rows._where_criteria
        # In the order of an object's identity.
        columns = list(mapper.primary_key)
    if not columns:
        raise InvalidOptionError("rows", "is of a table without a primary key")
    return Target(table, columns, and_(*criteria) if criteria else None)
