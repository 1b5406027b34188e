"""The database's clock as an expression, and the seam through which tests replace it.

Only the database's time decides anything. ``statement_timestamp()`` is stable within a
statement, so it can use an index (``clock_timestamp()`` cannot), and it is not frozen at
BEGIN as ``now()`` is. :func:`freeze` replaces the expression by a literal in every
statement that this process builds afterwards, until :func:`thaw`.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import DateTime, Double, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Dialect
    from sqlalchemy.sql.compiler import SQLCompiler


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: aware in Python, always UTC, whatever the database keeps.

    SQLite drops offsets silently, so a naive value is refused and an aware one is
    converted before it is sent; what comes back is aware.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(
        self, value: datetime | None, dialect: Dialect
    ) -> datetime | None:
        """Convert to UTC; refuse a naive datetime, which names no instant."""
        if value is None:
            return None
        if value.tzinfo is None:
            msg = f"{value!r} has no time zone: give an aware datetime"
            raise ValueError(msg)
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(
        self,
        value: datetime | None,
        dialect: Dialect,  # noqa: ARG002 - the signature is SQLAlchemy's
    ) -> datetime | None:
        """Return the instant as an aware datetime in UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            return value.replace(tzinfo=UTC)
        # The driver gives the server's zone, and two datetimes of one zone subtract by
        # their wall clocks: an hour wrong across a change to or from summer time.
        return value.astimezone(UTC)


class _Now(FunctionElement[datetime]):
    type = UtcDateTime()
    inherit_cache = True


_SQL: Final = {
    "postgresql": "statement_timestamp()",
    # The form in which SQLAlchemy stores a DateTime there: text, six decimals.
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now')",
}


@compiles(_Now)
def _compile_now(
    element: _Now,  # noqa: ARG001 - the signature is SQLAlchemy's
    compiler: SQLCompiler,
    **kw: Any,  # noqa: ANN401, ARG001 - the signature is SQLAlchemy's
) -> str:
    return _SQL[compiler.dialect.name]


class _Shifted(FunctionElement[datetime]):
    """The present instant moved by seconds, its only argument."""

    type = UtcDateTime()
    inherit_cache = True


_SHIFTED: Final = {
    "postgresql": "(statement_timestamp() + {} * interval '1 second')",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now', {} || ' seconds')",
}


@compiles(_Shifted)
def _compile_shifted(
    element: _Shifted,
    compiler: SQLCompiler,
    **kw: Any,  # noqa: ANN401 - the signature is SQLAlchemy's
) -> str:
    seconds = compiler.process(element.clause_expr.element, **kw)
    return _SHIFTED[compiler.dialect.name].format(seconds)


_frozen_at: datetime | None = None


def shifted(by: timedelta) -> ColumnElement[datetime]:
    """Return the expression for the present instant plus *by* (which may be negative)."""
    if _frozen_at is not None:
        return literal(_frozen_at + by, UtcDateTime())
    return _Shifted(literal(by.total_seconds(), Double()))


def now() -> ColumnElement[datetime]:
    """Return the expression for the present instant; build statements per call."""
    if _frozen_at is not None:
        return literal(_frozen_at, UtcDateTime())
    return _Now()


def sql(dialect: str) -> str:
    """Return the SQL text for the present instant on *dialect*."""
    if _frozen_at is None:
        return _SQL[dialect]
    if dialect == "postgresql":
        return f"timestamptz '{_frozen_at.isoformat()}'"
    return f"'{_frozen_at.replace(tzinfo=None):%Y-%m-%d %H:%M:%S.%f}'"


def monotonic() -> float:
    """Return seconds of a clock that only moves forward; it stands while frozen."""
    return time.monotonic() if _frozen_at is None else _frozen_at.timestamp()


def frozen_at() -> datetime | None:
    """Return the instant at which the clock stands; None while time goes on."""
    return _frozen_at


def freeze(at: datetime) -> None:
    """Let every statement built from here on see *at* as the present (tests only)."""
    global _frozen_at  # noqa: PLW0603 - the one seam, process-wide on purpose
    _frozen_at = at.astimezone(UTC)


def advance(by: timedelta) -> datetime:
    """Move the frozen clock on by *by* and return the new present (tests only)."""
    if _frozen_at is None:
        msg = "the clock is not frozen: call freeze() first"
        raise RuntimeError(msg)
    freeze(_frozen_at + by)
    return _frozen_at


def thaw() -> None:
    """Give time back to the database (tests only)."""
    global _frozen_at  # noqa: PLW0603 - the one seam, process-wide on purpose
    _frozen_at = None
