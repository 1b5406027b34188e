"""A worker process of the chaos."""

from __future__ import annotations

import json
import logging
import random
import sys
import threading
from datetime import timedelta
from typing import Any

import attrs
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from sqla_jobs import Worker
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.worker import rescuer
from tests.chaos.faults import WORKER, Faults, install, say
from tests.chaos.kinds import QUEUES, jobs
from tests.chaos.plan import Plan
from tests.chaos.tables import WORKER as NAME
from tests.chaos.tables import application, url_of_environment

STATS = "stats "
BETWEEN_STATS = 0.2


def work(packed: dict[str, Any], number: int, generation: int) -> None:
    """Run a worker until SIGTERM; also until a fault, or a job, ends the process."""
    plan = Plan.unpacked(packed)
    chance = plan.chance("worker", number, generation)
    random.seed(chance.random())
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s"
    )
    # The rescuer's own times suit a lease of half a minute.
    grace = timedelta(seconds=plan.rescue_grace)
    vars(rescuer).update(INTERVAL=plan.rescue_interval, GRACE=grace)
    install(Faults(plan, chance, WORKER))

    _, session = application(NAME, pool_size=sum(QUEUES.values()))
    async_engine = create_async_engine(
        url_of_environment(),
        pool_size=sum(QUEUES.values()),
        connect_args={"application_name": NAME},
    )
    worker = Worker(
        jobs,
        session=session,
        async_session=async_sessionmaker(async_engine, class_=AsyncJobSession),
        queues=QUEUES,
        grace="1s",
        lease_ttl=timedelta(seconds=plan.lease_ttl),
        poll_interval="300ms",
    )
    ended = threading.Event()
    reporter = threading.Thread(target=_report, args=(worker, ended), daemon=True)
    reporter.start()
    try:
        worker.run()
    finally:
        ended.set()
        reporter.join()


def _report(worker: Worker, ended: threading.Event) -> None:
    """Print the counts a few times a second: the last ones survive a kill."""
    while True:
        last = ended.wait(BETWEEN_STATS)
        say(STATS + json.dumps(attrs.asdict(worker.stats)))
        if last:
            return
