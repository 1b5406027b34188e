"""The root command, with all verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sqla_jobs.cli.backfill import backfill
from sqla_jobs.cli.command import Verbs
from sqla_jobs.cli.config import config
from sqla_jobs.cli.db import db
from sqla_jobs.cli.dead import dead
from sqla_jobs.cli.jobs import jobs
from sqla_jobs.cli.queues import queues
from sqla_jobs.cli.templates import templates
from sqla_jobs.cli.worker import worker
from sqla_jobs.cli.workers import workers
from sqla_jobs.worker.heartbeat import code_version

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(code_version(), message="sqla-jobs %(version)s")
def sqla_jobs() -> None:
    """Durable background jobs in your application's own database.

    Options are read from the command line, else from SQLA_JOBS_APP, SQLA_JOBS_SESSION
    and SQLA_JOBS_DATABASE_URL, else from [tool.sqla-jobs] in pyproject.toml. To look at
    jobs and steer them the URL alone is enough.
    """


for verb in (worker, jobs, dead, queues, workers, backfill, db, templates, config):
    sqla_jobs.add_command(verb)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    :param arguments: without the program's name; those of the process by default.
    """
    try:
        sqla_jobs.main(
            args=None if arguments is None else list(arguments), prog_name="sqla-jobs"
        )
    except SystemExit as end:  # click ends this way, also when all is fine
        return int(end.code or 0)
