"""Version 2 of the tables: backfills are added.

Code of version 1 goes on with them: it does not know them.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
)

from sqla_jobs.alembic.version_one import HOT, no_tables
from sqla_jobs.clock import UtcDateTime

TABLES: Final = no_tables()


Table(
    "sqla_backfill",
    TABLES,
    Column("name", Text(), primary_key=True),
    Column("after", Text()),
    Column("table_name", Text()),
    Column("status", Text(), nullable=False),
    Column("checksum", Text()),
    Column("remain_sql", Text()),
    Column("cursor", JSON(none_as_null=True)),
    Column("pass_number", Integer(), nullable=False),
    Column("batch_size", Integer()),
    Column("rate", Double()),
    Column("rows_done", BigInteger(), nullable=False),
    Column("rows_estimate", BigInteger()),
    Column("failures", Integer(), nullable=False),
    Column("fence", BigInteger(), nullable=False),
    Column("holder", Uuid()),
    Column("holder_name", Text()),
    Column("lease_until", UtcDateTime()),
    Column("requested", Text()),
    Column("reason", Text()),
    Column("error_type", Text()),
    Column("error", Text()),
    Column("declared_at", UtcDateTime(), nullable=False),
    Column("started_at", UtcDateTime()),
    Column("beat_at", UtcDateTime()),
    Column("finished_at", UtcDateTime()),
    postgresql_with={"fillfactor": 50, **HOT},
)
Table(
    "sqla_backfill_event",
    TABLES,
    Column("id", Uuid(), primary_key=True),
    Column("backfill", Text(), nullable=False),
    Column("at", UtcDateTime(), nullable=False),
    Column("kind", Text(), nullable=False),
    Column("by", Text()),
    Column("detail", Text()),
    Index("sqla_backfill_event_backfill", "backfill", "at"),
)
Table(
    "sqla_backfill_failure",
    TABLES,
    Column("backfill", Text(), primary_key=True),
    Column("key_text", Text(), primary_key=True),
    Column("error_type", Text(), nullable=False),
    Column("error", Text(), nullable=False),
    Column("at", UtcDateTime(), nullable=False),
    Column("state", Text(), nullable=False),
)
