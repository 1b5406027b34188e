"""All mapped tables of the library, and no queries."""

from sqla_jobs.models.backfill import Backfill, BackfillEvent, BackfillFailure
from sqla_jobs.models.base import Base, metadata
from sqla_jobs.models.job import Attempt, Job, JobBody, JobOutput
from sqla_jobs.models.runtime import (
    CODE_VERSION,
    MIN_SCHEMA_VERSION,
    SCHEMA_VERSION,
    Meta,
    QueueRow,
    WorkerRow,
)

__all__ = [
    "CODE_VERSION",
    "MIN_SCHEMA_VERSION",
    "SCHEMA_VERSION",
    "Attempt",
    "Backfill",
    "BackfillEvent",
    "BackfillFailure",
    "Base",
    "Job",
    "JobBody",
    "JobOutput",
    "Meta",
    "QueueRow",
    "WorkerRow",
    "metadata",
]
