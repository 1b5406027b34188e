"""For the tests of applications: run jobs inline, look at what was enqueued.

Everything works inside a transaction that is rolled back in the end, on the test's own
connection. The package does not import pytest; the plugin beside it
(``sqla_jobs_pytest``) gives the fixtures.
"""

from sqla_jobs.testing.body import run_job, run_job_async
from sqla_jobs.testing.clock import Clock
from sqla_jobs.testing.drain import Drained, drain, drain_async
from sqla_jobs.testing.enqueued import assert_enqueued, refute_enqueued
from sqla_jobs.testing.transaction import rolled_back, rolled_back_async

__all__ = [
    "Clock",
    "Drained",
    "assert_enqueued",
    "drain",
    "drain_async",
    "refute_enqueued",
    "rolled_back",
    "rolled_back_async",
    "run_job",
    "run_job_async",
]
