"""Declaring backfills: changes of many rows that run beside the application."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from sqla_jobs.declare.rate import Rate
from sqla_jobs.declare.text import check_name
from sqla_jobs.exc import InvalidOptionError

if TYPE_CHECKING:
    from sqlalchemy import Delete, Select, Update

MAX_BATCH: Final = 100_000
"""The largest batch: its rows are locked and, with a function, held in memory."""


@attrs.frozen
class Stop:
    """Stop at the first row that fails."""


def _most(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOptionError(
            "Skip(max_failures)", f"is {value!r}, not a whole number from 1"
        )
    return value


@attrs.frozen
class Skip:
    """Record the rows that fail, and go on; stop when they are too many.

    They keep the backfill from being done until they are retried or accepted.
    """

    max_failures: int = attrs.field(default=100, converter=_most)


OnError: TypeAlias = Stop | Skip
Rows: TypeAlias = "Select[*tuple[Any, ...]]"
Statement: TypeAlias = "Update | Delete"
Function: TypeAlias = Callable[[Any, Sequence[Any]], None]


@attrs.frozen(kw_only=True, eq=False)
class BackfillSpec:
    """A declared backfill; exactly one of ``rows`` and ``statement`` is there."""

    name: str
    after: str
    """The full id of the revision that must be applied before it runs."""
    version: int
    batch_size: int
    rate: Rate | None
    environments: frozenset[str] | None
    """Where it may run; None: everywhere."""
    on_error: OnError
    rows: Rows | None
    statement: Statement | None
    function: Function | None
    declared_at: str


def make_spec(
    name: str,
    *,
    after: str,
    version: int,
    batch_size: int,
    rate: Rate | None,
    environments: set[str] | frozenset[str] | None,
    on_error: OnError,
    declared_at: str,
    rows: Rows | None = None,
    statement: Statement | None = None,
    function: Function | None = None,
) -> BackfillSpec:
    """Check every option that can be checked without SQLAlchemy."""
    check_name(name, option="name")
    _check_numbers(name, version, batch_size)
    _check_kinds(name, after, rate, environments, on_error)
    if isinstance(on_error, Skip) and statement is not None:
        raise InvalidOptionError(
            "on_error", "cannot be Skip(): a statement changes all rows or none", name
        )
    return BackfillSpec(
        name=name,
        after=after,
        version=version,
        batch_size=batch_size,
        rate=rate,
        environments=None if environments is None else frozenset(environments),
        on_error=on_error,
        rows=rows,
        statement=statement,
        function=function,
        declared_at=declared_at,
    )


def _check_numbers(name: str, version: object, batch_size: object) -> None:
    for option, value, most in (
        ("version", version, 2**31 - 1),
        ("batch_size", batch_size, MAX_BATCH),
    ):
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not 1 <= value <= most
        ):
            raise InvalidOptionError(option, f"is {value!r}, not 1 to {most:,}", name)


def _check_kinds(
    name: str, after: object, rate: object, environments: object, on_error: object
) -> None:
    if not isinstance(after, str) or not after.strip():
        raise InvalidOptionError("after", "is no revision id", name)
    if rate is not None and not isinstance(rate, Rate):
        raise InvalidOptionError("rate", f"is {rate!r}, not a Rate(...)", name)
    if not isinstance(on_error, Stop | Skip):
        raise InvalidOptionError("on_error", "is neither Stop() nor Skip()", name)
    if environments is not None and (
        not isinstance(environments, set | frozenset) or not environments
    ):
        raise InvalidOptionError("environments", "is no set of names", name)
