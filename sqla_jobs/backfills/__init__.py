"""Backfills: their ledger, their runs, and what there is to tell of them."""

from sqla_jobs.backfills.checksum import backfill_checksum
from sqla_jobs.backfills.gate import check_backfill_environment, gate_backfill
from sqla_jobs.backfills.report import (
    BackfillReport,
    backfill_report,
    backfill_reports,
    pending_backfills,
)
from sqla_jobs.backfills.runner import BackfillResult, run_backfill
from sqla_jobs.backfills.steer import (
    accept_failures,
    baseline_backfill,
    cancel_backfill,
    pause_backfill,
    resume_backfill,
    retry_failures,
    set_backfill_pace,
)

__all__ = [
    "BackfillReport",
    "BackfillResult",
    "accept_failures",
    "backfill_checksum",
    "backfill_report",
    "backfill_reports",
    "baseline_backfill",
    "cancel_backfill",
    "check_backfill_environment",
    "gate_backfill",
    "pause_backfill",
    "pending_backfills",
    "resume_backfill",
    "retry_failures",
    "run_backfill",
    "set_backfill_pace",
]
