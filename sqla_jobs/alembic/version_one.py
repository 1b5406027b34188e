"""Version 1 of the tables: jobs, their attempts, and the workers.

Written out as it was, whatever the mapped classes say by now.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
    false,
    text,
)

from sqla_jobs.clock import UtcDateTime
from sqla_jobs.models import metadata
from sqla_jobs.models.base import Payload


def no_tables() -> MetaData:
    """Return where the tables of one version are written down."""
    return MetaData(
        schema=metadata.schema, naming_convention={"pk": "%(table_name)s_pkey"}
    )


TABLES: Final = no_tables()
HOT: Final = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 5000,
    "autovacuum_analyze_scale_factor": 0,
    "autovacuum_analyze_threshold": 10000,
    "autovacuum_vacuum_cost_delay": 0,
    "vacuum_truncate": "off",
}


def partial(name: str, *columns: str, when: str) -> Index:
    """Return an index on the rows that match *when*."""
    return Index(name, *columns, postgresql_where=text(when), sqlite_where=text(when))


Table(
    "sqla_job",
    TABLES,
    Column("id", Uuid(), primary_key=True),
    Column("tenant", Text(), nullable=False),
    Column("name", Text(), nullable=False),
    Column("queue", Text(), nullable=False),
    Column("key", Text(), nullable=False),
    Column("state", Text(), nullable=False),
    Column("priority", SmallInteger(), nullable=False),
    Column("run_at", UtcDateTime(), nullable=False),
    Column("lane", Text()),
    Column("cap_keys", JSON(none_as_null=True)),
    Column("attempt", Integer(), nullable=False, server_default=text("0")),
    Column("max_attempts", Integer(), nullable=False),
    Column("interruptions", SmallInteger(), nullable=False, server_default=text("0")),
    Column("fence", BigInteger(), nullable=False, server_default=text("0")),
    Column("worker_id", Uuid()),
    Column("attempted_at", UtcDateTime()),
    Column("deadline_at", UtcDateTime()),
    Column("cancel_requested_at", UtcDateTime()),
    Column("cancel_reason", Text()),
    Column("rerun", Boolean(), nullable=False, server_default=false()),
    Column("rerun_run_at", UtcDateTime()),
    Column("traceparent", Text()),
    Column("enqueued_by", Text()),
    Column("created_at", UtcDateTime(), nullable=False),
    Column("finished_at", UtcDateTime()),
    CheckConstraint(
        "state in ('ready', 'running', 'waiting', 'succeeded', 'dead', 'cancelled')",
        name="sqla_job_state",
    ),
    CheckConstraint(
        "(state = 'running') = (worker_id is not null)", name="sqla_job_owner"
    ),
    CheckConstraint(
        "(finished_at is not null) = (state in ('succeeded', 'dead', 'cancelled'))",
        name="sqla_job_finish",
    ),
    partial("sqla_job_dead", "tenant", "finished_at", when="state = 'dead'"),
    partial("sqla_job_finished", "finished_at", "id", when="finished_at is not null"),
    Index("sqla_job_identity", "tenant", "name", "key", unique=True),
    partial(
        "sqla_job_lane",
        "queue",
        "lane",
        "priority",
        "run_at",
        "id",
        when="state in ('ready', 'waiting') and lane is not null",
    ),
    partial("sqla_job_owned", "worker_id", when="state = 'running'"),
    partial(
        "sqla_job_ready",
        "queue",
        "priority",
        "run_at",
        "id",
        when="state in ('ready', 'waiting') and lane is null",
    ),
    postgresql_with={"fillfactor": 85, **HOT},
)
Table(
    "sqla_job_body",
    TABLES,
    Column("job_id", Uuid(), primary_key=True),
    Column("input", Payload(none_as_null=False), nullable=False),
    Column("rerun_input", Payload(none_as_null=True)),
    postgresql_with=HOT,
)
Table(
    "sqla_job_output",
    TABLES,
    Column("job_id", Uuid(), primary_key=True),
    Column("fence", BigInteger(), nullable=False),
    Column("output", Payload(none_as_null=False), nullable=False),
    postgresql_with=HOT,
)
Table(
    "sqla_attempt",
    TABLES,
    Column("job_id", Uuid(), primary_key=True),
    Column("fence", BigInteger(), primary_key=True),
    Column("number", Integer(), nullable=False),
    Column("worker_id", Uuid()),
    Column("worker", Text()),
    Column("started_at", UtcDateTime()),
    Column("ended_at", UtcDateTime(), nullable=False),
    Column("outcome", Text(), nullable=False),
    Column("error_type", Text()),
    Column("error", Text()),
    postgresql_with=HOT,
)
Table(
    "sqla_worker",
    TABLES,
    Column("id", Uuid(), primary_key=True),
    Column("lease_until", UtcDateTime(), nullable=False),
    Column("started_at", UtcDateTime(), nullable=False),
    Column("suspect_at", UtcDateTime()),
    Column("host", Text(), nullable=False),
    Column("pid", Integer(), nullable=False),
    Column("version", Text(), nullable=False),
    Column("queues", JSON(), nullable=False),
    Column("backends", JSON(none_as_null=True)),
    Column("listening", Boolean()),
    Column("stuck", Integer()),
    postgresql_with={"fillfactor": 50, **HOT},
)
Table(
    "sqla_queue",
    TABLES,
    Column("name", Text(), primary_key=True),
    Column("paused_at", UtcDateTime()),
)
Table(
    "sqla_meta",
    TABLES,
    Column("id", SmallInteger(), primary_key=True, autoincrement=False),
    Column("schema_version", Integer(), nullable=False),
    Column("min_code_version", Integer(), nullable=False),
)
