"""Backfills: their ledger, their runs, and what there is to tell of them."""

from sqla_jobs.backfills.report import (
    BackfillReport,
    backfill_report,
    backfill_reports,
    pending_backfills,
)

__all__ = [
    "BackfillReport",
    "backfill_report",
    "backfill_reports",
    "pending_backfills",
]
