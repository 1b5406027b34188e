"""Operations for the application's own migrations."""

from sqla_jobs.alembic.gates import declare_backfill, require_backfill

__all__ = ["declare_backfill", "require_backfill"]
