"""Durable background work as an extension of SQLAlchemy.

Jobs are rows of your own database: ``session.enqueue(job, input)`` writes one in your
session's transaction, and a worker, an entrypoint of the same application, runs it.
"""

from sqla_jobs.declare.backfill import BackfillSpec, Skip, Stop
from sqla_jobs.declare.context import JobContext, JobFacts
from sqla_jobs.declare.duration import Duration
from sqla_jobs.declare.job import (
    AsyncHandlerNeedsAsyncJobContext,
    DeadJob,
    Declared,
    JobDecorator,
    JobSpec,
    OnDuplicate,
)
from sqla_jobs.declare.rate import Rate
from sqla_jobs.declare.registry import Jobs, Lifespan
from sqla_jobs.declare.retry import Backoff, Retry, constant, exponential
from sqla_jobs.declare.sensitive import Sensitive
from sqla_jobs.declare.signals import Discard, RetryLater, Snooze
from sqla_jobs.declare.tenant import NO_TENANT, NoTenant, TenantId
from sqla_jobs.models import metadata
from sqla_jobs.queue.control import (
    cancel_job,
    discard_job,
    find_job,
    job_output,
    pause_queue,
    resume_queue,
    retry_job,
)
from sqla_jobs.queue.enqueue import enqueue, enqueue_many, write_jobs
from sqla_jobs.queue.pending import Enqueued
from sqla_jobs.session import JobSession
from sqla_jobs.worker import Worker

__all__ = [
    "NO_TENANT",
    "AsyncHandlerNeedsAsyncJobContext",
    "BackfillSpec",
    "Backoff",
    "DeadJob",
    "Declared",
    "Discard",
    "Duration",
    "Enqueued",
    "JobContext",
    "JobDecorator",
    "JobFacts",
    "JobSession",
    "JobSpec",
    "Jobs",
    "Lifespan",
    "NoTenant",
    "OnDuplicate",
    "Rate",
    "Retry",
    "RetryLater",
    "Sensitive",
    "Skip",
    "Snooze",
    "Stop",
    "TenantId",
    "Worker",
    "cancel_job",
    "constant",
    "discard_job",
    "enqueue",
    "enqueue_many",
    "exponential",
    "find_job",
    "job_output",
    "metadata",
    "pause_queue",
    "resume_queue",
    "retry_job",
    "write_jobs",
]
