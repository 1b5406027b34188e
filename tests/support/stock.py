"""A table with a long past and a long future, in several states of its statistics."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, Engine, text

FINISHED: Final = 60_000
FUTURE: Final = 40_000
DUE: Final = 2_000
RUNNING: Final = 1_000
ORPHANS: Final = 200

QUEUE: Final = "default"
LIVE: Final = "00000000-0000-4000-8000-00000000aaaa"
"""A worker whose lease is valid, and who holds RUNNING jobs."""
GONE: Final = "00000000-0000-4000-8000-00000000dddd"
"""A worker whose lease ended an hour ago; ORPHANS jobs were its."""

WORKERS: Final = f"""
insert into sqla_worker (id, lease_until, started_at, host, pid, version, queues)
select cast(id as uuid), statement_timestamp() + cast(lease as interval),
       statement_timestamp(), 'host-1', 42, '0.1.0', '{{"default": 10}}'
  from (values ('{LIVE}', '1 hour'), ('{GONE}', '-1 hour')) as w(id, lease)
"""

JOBS: Final = """
with given as (
    select gen_random_uuid() as id, n from generate_series(1, :count) as n
), jobs as (
    insert into sqla_job (
        id, tenant, name, queue, key, state, priority, run_at, attempt, max_attempts,
        fence, worker_id, attempted_at, created_at, finished_at)
    select id, '', 'shop.work', :queue, :label || n, :state, n % 10,
           statement_timestamp() + cast(:at as interval) + n * interval '1 ms', :fence,
           3, :fence, cast(:worker_id as uuid),
           case when :fence > 0 then statement_timestamp() - interval '2 hours' end,
           statement_timestamp() - interval '30 days',
           case when :state = 'succeeded'
                then statement_timestamp() - interval '30 days' + n * interval '1 ms'
           end
      from given
), outputs as (
    insert into sqla_job_output (job_id, fence, output)
    select id, 1, '{"n": 1}' from given where :state = 'succeeded'
), attempts as (
    insert into sqla_attempt (job_id, fence, number, ended_at, outcome)
    select id, 0, 1, statement_timestamp() - interval '30 days', 'failed' from given
     where :state = 'succeeded'
)
insert into sqla_job_body (job_id, input) select id, '{"n": 1}' from given
"""


def add_jobs(
    connection: Connection,
    label: str,
    count: int,
    *,
    state: str = "ready",
    at: str = "-1 hour",
    worker_id: str | None = None,
    queue: str = QUEUE,
) -> None:
    """Insert *count* jobs, spread over all priorities, from *at* on, 1 ms apart."""
    connection.execute(
        text(JOBS),
        {
            "label": label,
            "count": count,
            "state": state,
            "at": at,
            "worker_id": worker_id,
            "queue": queue,
            "fence": 0 if state == "ready" else 1,
        },
    )


def _past(connection: Connection) -> None:
    add_jobs(connection, "finished:", FINISHED, state="succeeded")


def _present(connection: Connection) -> None:
    connection.execute(text(WORKERS))
    add_jobs(connection, "future:", FUTURE, at="1 day")
    add_jobs(connection, "due:", DUE)
    add_jobs(connection, "live:", RUNNING, state="running", worker_id=LIVE)
    add_jobs(connection, "orphan:", ORPHANS, state="running", worker_id=GONE)


STATISTICS: Final = ("never", "empty", "all done", "backlog")
"""When the tables were last analysed; what is in them in the end is the same."""


def fill(engine: Engine, statistics: str) -> None:
    """Fill the tables of a fresh database; autovacuum stays away from them."""
    with engine.begin() as connection:
        for table in ("job", "job_body", "job_output", "attempt", "worker"):
            connection.execute(
                text(f"alter table sqla_{table} set (autovacuum_enabled = off)")
            )
        if statistics == "empty":
            connection.execute(text("analyze"))
        first, second = _past, _present
        if statistics == "backlog":
            first, second = _present, _past
        first(connection)
        if statistics in {"all done", "backlog"}:
            connection.execute(text("analyze"))
        second(connection)
