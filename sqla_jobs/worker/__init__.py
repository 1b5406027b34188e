"""The running system: one process that claims, runs and settles jobs."""

from sqla_jobs.worker.stats import Stats
from sqla_jobs.worker.worker import Worker

__all__ = ["Stats", "Worker"]
