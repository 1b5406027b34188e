"""All mapped tables of the library, and no queries."""

from .base import Base, metadata
from .job import Attempt, Job, JobBody, JobOutput
from .runtime import (
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
    "Base",
    "Job",
    "JobBody",
    "JobOutput",
    "Meta",
    "QueueRow",
    "WorkerRow",
    "metadata",
]
