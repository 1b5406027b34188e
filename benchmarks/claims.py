"""How long a claim takes beside finished and future rows, against an empty table."""

from __future__ import annotations

import statistics
import time
from datetime import timedelta
from uuid import uuid4

import attrs
from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.orm import Session

from benchmarks.app import Number, sync_noop
from sqla_jobs import enqueue_many
from sqla_jobs.queue.claim import claim
from sqla_jobs.queue.connections import own_engine
from sqla_jobs.queue.outcome import Settlement, Succeeded
from sqla_jobs.queue.renew import register_worker
from sqla_jobs.queue.settle import settle

BACKLOG = """
insert into sqla_job (id, tenant, name, key, queue, state, priority, run_at,
                      max_attempts, created_at, finished_at)
select gen_random_uuid(), '', 'bench.past', 'p' || n, 'default', 'succeeded', 5,
       statement_timestamp() - interval '1 hour', 1, statement_timestamp(),
       statement_timestamp()
  from generate_series(1, :finished) as n
union all
select gen_random_uuid(), '', 'bench.future', 'f' || n, 'default', 'ready', n % 10,
       statement_timestamp() + n * interval '1 minute', 1, statement_timestamp(), null
  from generate_series(1, :future) as n
"""


@attrs.frozen
class ClaimTimes:
    """Milliseconds per claim, median and 95th percentile."""

    batch: int
    empty: tuple[float, float]
    backlog: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Return how much longer the median claim takes beside the backlog."""
        return self.backlog[0] / self.empty[0]


def measure(
    url: URL, *, finished: int, future: int, rounds: int = 60
) -> list[ClaimTimes]:
    """Time claims of 1, 100 and 500 jobs, first alone, then beside the backlog."""
    app = create_engine(url)
    engine = own_engine(app).execution_options(isolation_level="AUTOCOMMIT")
    worker = str(uuid4())
    batches = (1, 100, 500)
    with engine.connect() as connection:
        session = Session(connection)
        register_worker(
            session,
            worker_id=worker,
            host="bench",
            pid=0,
            version="0",
            queues={"default": 500},
            ttl=timedelta(hours=1),
        )
        empty = {b: _time(connection, session, worker, b, rounds) for b in batches}
        connection.execute(text(BACKLOG), {"finished": finished, "future": future})
        connection.execute(text("vacuum analyze sqla_job"))
        full = {b: _time(connection, session, worker, b, rounds) for b in batches}
    app.dispose()
    engine.dispose()
    return [ClaimTimes(b, empty[b], full[b]) for b in batches]


_numbers = iter(range(1, 1 << 40))


def _time(
    connection: Connection, session: Session, worker: str, batch: int, rounds: int
) -> tuple[float, float]:
    # Both sides start from the same state of their pages.
    connection.execute(text("vacuum analyze sqla_job"))
    times = []
    for _ in range(rounds):
        with connection.engine.connect() as app, app.begin():
            inputs = [Number(next(_numbers)) for _ in range(batch)]
            enqueue_many(app, sync_noop, inputs)
        start = time.perf_counter()
        claimed = claim(session, worker, {"default": batch})
        times.append((time.perf_counter() - start) * 1e3)
        assert len(claimed) == batch
        done = [Settlement(c.id, c.fence, c.attempt, Succeeded()) for c in claimed]
        assert len(settle(session, worker, done, worker="bench")) == batch
    return statistics.median(times), statistics.quantiles(times, n=20)[18]
