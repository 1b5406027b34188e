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
    MetaData,
    Table,
    Text,
    Uuid,
)

from sqla_jobs.clock import UtcDateTime
from sqla_jobs.models import metadata

TABLES: Final = MetaData(
    schema=metadata.schema, naming_convention={"pk": "%(table_name)s_pkey"}
)
HOT: Final = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 5000,
    "autovacuum_analyze_scale_factor": 0,
    "autovacuum_analyze_threshold": 10000,
    "autovacuum_vacuum_cost_delay": 0,
    "vacuum_truncate": "off",
}

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
