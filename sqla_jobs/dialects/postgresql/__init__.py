"""PostgreSQL: the queue's first database."""

from __future__ import annotations

from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sqlalchemy import event

from sqla_jobs.dialects.base import QueueDialect, run
from sqla_jobs.dialects.postgresql import (
    claim_sql,
    enqueue_sql,
    network,
    settle_sql,
)
from sqla_jobs.dialects.rows import (
    Claimed,
    Existing,
    NewJob,
    RenewalRow,
    Rescued,
    SettleRow,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
    from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection


# Of transactions of the engine itself. No statement of it takes seconds, and whoever
# freezes between its last statement and the COMMIT loses the transaction.
BOUND: Final = """
select set_config('lock_timeout', '5s', true),
       set_config('statement_timeout', '30s', true),
       set_config('idle_in_transaction_session_timeout', '15s', true)
"""


class PostgreSQLDialect(QueueDialect):
    """Statements for PostgreSQL 15 and later, through any driver."""

    name: ClassVar = "postgresql"
    skip_locked: ClassVar = True
    notify: ClassVar = True
    own_driver: ClassVar = "psycopg"

    def arrange(self, engine: Engine) -> None:
        """Prepare nothing on the server, and read what is committed."""
        network.arrange(engine)
        event.listen(engine, "connect", _never_prepare)
        event.listen(engine, "checkout", partial(_read_committed, engine.dialect))

    def impatient(self) -> AbstractContextManager[None]:
        """Give up a connect, and a peer that has gone, after some seconds."""
        return network.impatient()

    def bound(self, connection: Connection) -> None:
        """Set the time-outs of this transaction; they end with it."""
        run(connection, BOUND)

    def insert_jobs(self, connection: Connection, jobs: Sequence[NewJob]) -> set[str]:
        """Insert what has no duplicate; one statement for rows and bodies."""
        given = {
            "tenants": [j.tenant for j in jobs],
            "names": [j.name for j in jobs],
            "keys": [j.key for j in jobs],
            "queues": [j.queue for j in jobs],
            "enqueued_bys": [j.enqueued_by for j in jobs],
            "traceparents": [j.traceparent for j in jobs],
            **_job_arrays([(j.id, j) for j in jobs]),
        }
        del given["modes"]
        return set(run(connection, enqueue_sql.INSERT, **given).scalars())

    def find_existing(
        self, connection: Connection, jobs: Sequence[NewJob]
    ) -> list[Existing]:
        """Return the rows that hold an identity or an id of *jobs*."""
        rows = run(
            connection,
            enqueue_sql.EXISTING,
            ids=[j.id for j in jobs],
            tenants=[j.tenant for j in jobs],
            names=[j.name for j in jobs],
            keys=[j.key for j in jobs],
        )
        return [Existing(*row) for row in rows]

    def renew_jobs(
        self, connection: Connection, jobs: Sequence[tuple[str, NewJob]]
    ) -> list[Existing]:
        """Lock existing rows in id order, then replace or rerun them."""
        run(connection, enqueue_sql.LOCK, ids=[id_ for id_, _ in jobs])
        rows = run(connection, enqueue_sql.RENEW, **_job_arrays(jobs))
        return [Existing(*row) for row in rows]

    def claim(
        self,
        connection: Connection,
        *,
        worker_id: str,
        rooms: Mapping[str, int],
        limits: Mapping[str, float],
        unknown: Collection[str],
        inline: int,
    ) -> list[Claimed]:
        """Take due jobs of each queue, better priorities first; see claim_sql."""
        rows = run(
            connection,
            claim_sql.CLAIM,
            worker_id=worker_id,
            queues=list(rooms),
            rooms=list(rooms.values()),
            limited=list(limits),
            seconds=list(limits.values()),
            unknown=list(unknown),
            inline=inline,
        )
        # The driver gives the server's zone, in which the hour that ends summer time
        # stands twice: instants of one zone compare by their wall clocks.
        claimed = [Claimed(*row) for row in rows]
        return [c._replace(run_at=c.run_at.astimezone(UTC)) for c in claimed]

    def inputs_of(self, connection: Connection, ids: Sequence[str]) -> dict[str, str]:
        """Return the inputs of *ids* as JSON text."""
        rows = run(connection, claim_sql.INPUTS, ids=list(ids))
        return {row[0]: row[1] for row in rows}

    def next_due(
        self, connection: Connection, queues: Sequence[str], unknown: Collection[str]
    ) -> float | None:
        """Return the seconds until the next job of *queues* is due."""
        due: float | None = run(
            connection, claim_sql.NEXT_DUE, queues=list(queues), unknown=list(unknown)
        ).scalar_one()
        return due

    def settle(
        self,
        connection: Connection,
        *,
        worker_id: str,
        worker: str,
        rows: Sequence[SettleRow],
        wait: bool,
    ) -> set[str]:
        """Write outcomes where fence and owner match; one statement."""
        accepted = run(
            connection,
            settle_sql.SETTLE_ALONE if wait else settle_sql.SETTLE,
            worker_id=worker_id,
            worker=worker,
            ids=[r.id for r in rows],
            fences=[r.fence for r in rows],
            numbers=[r.number for r in rows],
            outcomes=[r.outcome for r in rows],
            delays=[str(r.delay) for r in rows],
            outputs=[r.output for r in rows],
            error_types=[r.error_type for r in rows],
            errors=[r.error for r in rows],
            timed_out=[r.timed_out for r in rows],
        )
        return set(accepted.scalars())

    def hold(
        self, connection: Connection, *, job_id: str, fence: int, worker_id: str
    ) -> bool:
        """Lock the attempt's job row, if it still owns it."""
        row = run(
            connection,
            settle_sql.HOLD,
            job_id=job_id,
            fence=fence,
            worker_id=worker_id,
        ).first()
        return row is not None

    def renew(
        self,
        connection: Connection,
        *,
        worker_id: str,
        ttl: timedelta,
        running: Sequence[tuple[str, int]],
        backends: Sequence[int],
        listening: bool | None,
        stuck: int,
        sign: tuple[str, str] | None,
    ) -> RenewalRow | None:
        """Extend a valid lease and report on *running*; one statement."""
        channel, payload = sign or (None, None)
        beat, lost, asked, reasons, paused, schema, code, _ = run(
            connection,
            settle_sql.RENEW,
            worker_id=worker_id,
            ttl=ttl.total_seconds(),
            ids=[id_ for id_, _ in running],
            fences=[fence for _, fence in running],
            backends=str(list(backends)),
            listening=listening,
            stuck=stuck,
            channel=channel,
            payload=payload,
        ).one()
        if not beat:
            return None
        cancelled = [(i, r or None) for i, r in zip(asked, reasons, strict=True)]
        return RenewalRow(lost, cancelled, paused, schema, code)

    def rescue(
        self, connection: Connection, *, grace: timedelta, delay: timedelta, limit: int
    ) -> list[Rescued]:
        """Free jobs of dead workers and passed deadlines; one statement."""
        rows = run(
            connection,
            settle_sql.RESCUE,
            grace=grace.total_seconds(),
            delay=delay.total_seconds(),
            limit=limit,
        )
        return [Rescued(*row) for row in rows]

    def end_backends(self, connection: Connection, worker_ids: Sequence[str]) -> int:
        """End the idle transactions that dead workers left behind."""
        ended: int = run(
            connection, settle_sql.END_BACKENDS, worker_ids=list(worker_ids)
        ).scalar_one()
        return ended


def _job_arrays(jobs: Sequence[tuple[str, NewJob]]) -> dict[str, list[Any]]:
    return {
        "ids": [id_ for id_, _ in jobs],
        "modes": [j.mode for _, j in jobs],
        "priorities": [j.priority for _, j in jobs],
        "inputs": [j.input for _, j in jobs],
        "max_attempts": [j.max_attempts for _, j in jobs],
        # As text: every driver knows how to send it.
        "run_ats": [j.run_at and j.run_at.isoformat() for _, j in jobs],
        "afters": [str(j.after) for _, j in jobs],
    }


def _never_prepare(
    connection: DBAPIConnection,
    record: ConnectionPoolEntry,  # noqa: ARG001 - SQLAlchemy's signature
) -> None:
    if hasattr(connection, "prepare_threshold"):
        connection.prepare_threshold = None


def _read_committed(
    dialect: Dialect,
    connection: DBAPIConnection,
    record: ConnectionPoolEntry,  # noqa: ARG001 - SQLAlchemy's signature
    proxy: PoolProxiedConnection,  # noqa: ARG001 - SQLAlchemy's signature
) -> None:
    # Not an execution option of the engine: an engine made from this one with
    # isolation_level="AUTOCOMMIT" would get both, and this one last. The dialect's own
    # default is what the application asked for.
    dialect.set_isolation_level(connection, "READ COMMITTED")
