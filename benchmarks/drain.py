"""How fast workers drain no-op jobs, and where the time goes.

The worker runs in a process of its own, so that the measuring takes nothing from it. A
run counts from the first claim to the last settled job, as the database saw them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import attrs
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.orm import Session

from benchmarks.app import Number, async_noop, sync_noop
from sqla_jobs import enqueue_many
from sqla_jobs.worker import Worker

KINDS = {"sync": sync_noop, "async": async_noop}
CONCURRENCY = {"sync": 8, "async": 100}
TIMEOUT = 300.0


@attrs.frozen
class Drained:
    """One drain of ``jobs`` jobs by ``processes`` processes."""

    kind: str
    jobs: int
    processes: int
    seconds: float
    claim: float
    """Share of the wall time in which a claim was on its way, of one process."""
    execute: float
    """Share of the wall time in which at least that much handler time passed."""
    settle: float
    """Share of the wall time in which a settle was on its way."""
    claims: int
    batches: int

    @property
    def per_second(self) -> float:
        """Return jobs per second."""
        return self.jobs / self.seconds


def measure(url: URL, *, kind: str, jobs: int, processes: int = 1) -> Drained:
    """Enqueue *jobs* no-op jobs, start workers, and time until all are settled."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("truncate sqla_job, sqla_job_body, sqla_job_output"))
    with Session(engine) as session, session.begin():
        enqueue_many(session, KINDS[kind], map(Number, range(jobs)))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("vacuum analyze sqla_job"))
        connection.execute(text("checkpoint"))
    workers = [_start(url, kind) for _ in range(processes)]
    try:
        stats = _await(engine, workers, jobs)
        seconds = _seconds(engine, jobs)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        engine.dispose()
    parts = {
        name: sum(s[f"{name}_seconds"] for s in stats) / processes / seconds
        for name in ("claim", "execute", "settle")
    }
    return Drained(
        kind,
        jobs,
        processes,
        seconds,
        claims=sum(int(s["claims"]) for s in stats),
        batches=sum(int(s["batches"]) for s in stats),
        **parts,
    )


def _start(url: URL, kind: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.drain", kind],
        env={
            **os.environ,
            "SQLA_JOBS_DATABASE_URL": url.render_as_string(hide_password=False),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _await(
    engine: Engine, workers: list[subprocess.Popen[str]], jobs: int
) -> list[dict[str, float]]:
    left = text("select count(*) from sqla_job where state in ('ready', 'running')")
    deadline = time.monotonic() + TIMEOUT
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while connection.scalar(left):
            if time.monotonic() > deadline:
                msg = f"{jobs} jobs were not drained in {TIMEOUT:g} s"
                raise TimeoutError(msg)
            time.sleep(0.25)
    outputs = [worker.communicate("stop\n")[0] for worker in workers]
    return [json.loads(output) for output in outputs]


def _seconds(engine: Engine, jobs: int) -> float:
    with engine.connect() as connection:
        count, seconds = connection.execute(
            text(
                "select count(*), cast(extract(epoch from max(finished_at)"
                " - min(attempted_at)) as float) from sqla_job"
                " where state = 'succeeded' and fence = 1"
            )
        ).one()
    assert count == jobs, f"{count} of {jobs} succeeded at their first attempt"
    return float(seconds)


def _work(kind: str) -> None:
    from benchmarks.app import AsyncSession, Session, jobs

    worker = Worker(
        jobs,
        session=Session,
        async_session=AsyncSession,
        queues={"default": CONCURRENCY[kind]},
    )
    with worker:
        sys.stdin.readline()
        stats = worker.stats
    sys.stdout.write(json.dumps(attrs.asdict(stats)))


if __name__ == "__main__":
    _work(sys.argv[1])
