"""Operations for the application's own migrations."""

from sqla_jobs.alembic.filters import include_name
from sqla_jobs.alembic.gates import declare_backfill, require_backfill
from sqla_jobs.alembic.schema import migrate_schema

__all__ = ["declare_backfill", "include_name", "migrate_schema", "require_backfill"]
