"""Look at jobs, queues and workers: read only, without a lock, fit for a replica.

Every function emits a bounded number of SELECTs in the caller's session and returns
frozen values; ``as_dict()`` of each is the JSON that the command line prints. Lists
page by key and never load inputs or outputs; counts stop at :data:`.COUNT_LIMIT`.
"""

from sqla_jobs.inspect.depth import queues
from sqla_jobs.inspect.fleet import workers
from sqla_jobs.inspect.groups import dead_groups
from sqla_jobs.inspect.listing import count, dead_letters, jobs
from sqla_jobs.inspect.results import (
    COUNT_LIMIT,
    AttemptTrace,
    DeadGroup,
    DeadGroups,
    DeadLetter,
    JobSummary,
    JobTrace,
    Page,
    QueueStats,
    RunningJob,
    Unreadable,
    WorkerStats,
)
from sqla_jobs.inspect.trace import job
from sqla_jobs.queue.selection import JobFilter

__all__ = [
    "COUNT_LIMIT",
    "AttemptTrace",
    "DeadGroup",
    "DeadGroups",
    "DeadLetter",
    "JobFilter",
    "JobSummary",
    "JobTrace",
    "Page",
    "QueueStats",
    "RunningJob",
    "Unreadable",
    "WorkerStats",
    "count",
    "dead_groups",
    "dead_letters",
    "job",
    "jobs",
    "queues",
    "workers",
]
