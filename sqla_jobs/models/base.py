"""What all mapped tables share: the metadata, its schema, and small column types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import JSON, MetaData
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase

from sqla_jobs.settings import schema_name

if TYPE_CHECKING:
    from sqlalchemy.sql.compiler import SQLCompiler

NAMING: Final = {
    "pk": "%(table_name)s_pkey",
    "ck": "%(table_name)s_%(constraint_name)s",
}

metadata = MetaData(schema=schema_name(), naming_convention=NAMING)
"""All tables of the library; include it in the ``target_metadata`` of Alembic."""

HOT_STORAGE: Final = {
    # Thresholds are absolute: a scale factor of a table with millions of finished
    # rows would leave the few hot ones unvacuumed for hours. No tail truncation: it
    # takes ACCESS EXCLUSIVE on a hot table.
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 5000,
    "autovacuum_analyze_scale_factor": 0,
    "autovacuum_analyze_threshold": 10000,
    "autovacuum_vacuum_cost_delay": 0,
    "vacuum_truncate": "off",
}
BEATING_STORAGE: Final = {"fillfactor": 50, **HOT_STORAGE}
"""For small rows that are updated in place all the time: 100 % HOT."""


class Payload(JSON):
    """JSON of any shape, kept as the text that was written."""

    cache_ok = True


@compiles(Payload, "sqlite")
def _payload_on_sqlite(
    element: Payload,  # noqa: ARG001 - the signature is SQLAlchemy's
    compiler: SQLCompiler,  # noqa: ARG001 - the signature is SQLAlchemy's
    **kw: Any,  # noqa: ANN401, ARG001 - the signature is SQLAlchemy's
) -> str:
    # A column of type JSON turns text that looks like a number into one there: a
    # payload 12345678901234567890 would come back as 1.23e19.
    return "TEXT"


class Base(DeclarativeBase):
    """Base of the library's mapped classes; query and join them like any other."""

    metadata = metadata
