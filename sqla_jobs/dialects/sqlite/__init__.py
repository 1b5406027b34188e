"""SQLite: the embedded default. One writer, no skipping of locked rows, no NOTIFY."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from sqla_jobs.dialects.base import QueueDialect, run
from sqla_jobs.dialects.rows import Claimed, Existing, NewJob, RenewalRow, Rescued
from sqla_jobs.dialects.sqlite import claim_sql, enqueue_sql, settle_sql

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from sqlalchemy import Connection

    from sqla_jobs.dialects.rows import SettleRow

PATIENCE: Final = 10.0
"""Seconds between a rescuer's two looks: a heartbeat and a busy time-out."""


class SQLiteDialect(QueueDialect):
    """Statements for SQLite 3.38 and later (``->>``, UPDATE … FROM, RETURNING)."""

    name: ClassVar = "sqlite"
    skip_locked: ClassVar = False
    notify: ClassVar = False

    def insert_jobs(self, connection: Connection, jobs: Sequence[NewJob]) -> set[str]:
        """Insert what has no duplicate, then the bodies of what was inserted."""
        rows = _job_rows((job.id, job) for job in jobs)
        ids = list(run(connection, enqueue_sql.INSERT, jobs=rows).scalars())
        if ids:
            run(connection, enqueue_sql.INSERT_BODIES, jobs=rows, ids=json.dumps(ids))
        return {_dashed(id_) for id_ in ids}

    def find_existing(
        self, connection: Connection, jobs: Sequence[NewJob]
    ) -> list[Existing]:
        """Return the rows that hold an identity or an id of *jobs*."""
        rows = _job_rows((job.id, job) for job in jobs)
        found = run(connection, enqueue_sql.EXISTING, jobs=rows)
        return [Existing(_dashed(row[0]), *row[1:], "kept") for row in found]

    def renew_jobs(
        self, connection: Connection, jobs: Sequence[tuple[str, NewJob]]
    ) -> list[Existing]:
        """Replace or rerun existing rows; this transaction writes, so nobody else does."""
        given = dict(jobs)
        run(connection, settle_sql.LOCK)
        judged = run(connection, enqueue_sql.JUDGE, jobs=_job_rows(jobs)).all()
        changed = []
        acts: dict[str, list[tuple[str, NewJob]]] = {}
        for id_hex, *facts, state, act in judged:
            id_ = _dashed(id_hex)
            acts.setdefault(act, []).append((id_, given[id_]))
            outcome = act if act in ("kept", "replaced") else "rerun"
            state_now = "ready" if act == "reset" else state
            changed.append(Existing(id_, *facts, state_now, outcome))
        for act, statement in enqueue_sql.RENEW.items():
            if act not in acts:
                continue
            rows = _job_rows(acts[act])
            run(connection, statement, jobs=rows)
            run(connection, enqueue_sql.RENEW_BODY[act == "again"], jobs=rows)
            if act == "reset":
                run(connection, enqueue_sql.DROP_OUTPUTS, jobs=rows)
        return changed

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
        """Take due jobs of each queue, better priorities first."""
        with _writing(connection):
            ids: list[str] = []
            for queue, room in rooms.items():
                picked = run(
                    connection,
                    claim_sql.PICK,
                    queue=queue,
                    room=room,
                    unknown=json.dumps(list(unknown)),
                )
                ids += picked.scalars()
            if not ids:
                return []
            rows = run(
                connection,
                claim_sql.CLAIM,
                worker_id=_hex(worker_id),
                ids=json.dumps(ids),
                limits=json.dumps(dict(limits)),
                inline=inline,
            ).all()
        at = Claimed._fields.index("run_at")
        return [
            Claimed(_dashed(row[0]), *row[1:at], _instant(row[at]), *row[at + 1 :])
            for row in rows
        ]

    def inputs_of(self, connection: Connection, ids: Sequence[str]) -> dict[str, str]:
        """Return the inputs of *ids* as JSON text."""
        rows = run(connection, claim_sql.INPUTS, ids=_hexes(ids))
        return {_dashed(row[0]): row[1] for row in rows}

    def next_due(
        self, connection: Connection, queues: Sequence[str], unknown: Collection[str]
    ) -> float | None:
        """Return the seconds until the next job of *queues* is due."""
        names = json.dumps(list(unknown))
        dues = [
            run(connection, claim_sql.NEXT_DUE, queue=queue, unknown=names).scalar_one()
            for queue in queues
        ]
        return min((due for due in dues if due is not None), default=None)

    def settle(
        self,
        connection: Connection,
        *,
        worker_id: str,
        worker: str,
        rows: Sequence[SettleRow],
        wait: bool,  # noqa: ARG002 - a row alone cannot be locked here
    ) -> set[str]:
        """Write outcomes where fence and owner match, in one transaction."""
        given = {_hex(row.id): row for row in rows}
        with _writing(connection):
            started = self._started(connection, list(given))
            done: dict[str, bool] = {}
            # UPDATE … FROM takes one of several matching rows only.
            for batch in _without_repeats(rows):
                settled = run(
                    connection,
                    settle_sql.SETTLE,
                    worker_id=_hex(worker_id),
                    rows=json.dumps(
                        [
                            {
                                "id": _hex(row.id),
                                "fence": row.fence,
                                "outcome": row.outcome,
                                "delay": row.delay,
                            }
                            for row in batch
                        ]
                    ),
                ).all()
                held = {_hex(row.id): row.fence for row in batch}
                for id_, fence in settled:
                    done[id_] = fence > held[id_]
                    given[id_] = next(r for r in batch if _hex(r.id) == id_)
            self._write_children(connection, worker_id, worker, given, started, done)
        return {_dashed(id_) for id_ in done}

    def _started(
        self, connection: Connection, ids: Sequence[str]
    ) -> dict[str, str | None]:
        run(connection, settle_sql.LOCK)
        rows = run(connection, settle_sql.STARTED, ids=json.dumps(list(ids)))
        return {row[0]: row[1] for row in rows}

    def _write_children(
        self,
        connection: Connection,
        worker_id: str,
        worker: str,
        given: Mapping[str, SettleRow],
        started: Mapping[str, str | None],
        done: Mapping[str, bool],
    ) -> None:
        outputs, attempts = [], []
        for id_, again in done.items():
            row = given[id_]
            if row.output is not None and row.outcome == "succeeded" and not again:
                outputs.append({"id": id_, "fence": row.fence, "output": row.output})
            if row.outcome != "released" and (row.outcome != "succeeded" or again):
                attempts.append(
                    {
                        "id": id_,
                        "fence": row.fence,
                        "number": row.number,
                        "worker_id": _hex(worker_id),
                        "worker": worker,
                        "started_at": started.get(id_),
                        "outcome": _recorded(row),
                        "error_type": row.error_type,
                        "error": row.error,
                    }
                )
        if outputs:
            run(connection, settle_sql.OUTPUTS, rows=json.dumps(outputs))
        if attempts:
            run(connection, settle_sql.ATTEMPTS, rows=json.dumps(attempts))
        again_ids = [id_ for id_, again in done.items() if again]
        if again_ids:
            run(connection, settle_sql.NEW_BODIES, ids=json.dumps(again_ids))

    def hold(
        self, connection: Connection, *, job_id: str, fence: int, worker_id: str
    ) -> bool:
        """Take the write lock if the attempt still owns its job."""
        held = run(
            connection,
            settle_sql.HOLD,
            job_id=_hex(job_id),
            fence=fence,
            worker_id=_hex(worker_id),
        )
        return held.rowcount == 1

    def renew(
        self,
        connection: Connection,
        *,
        worker_id: str,
        ttl: timedelta,
        running: Sequence[tuple[str, int]],
        backends: Sequence[int],  # noqa: ARG002 - there are no server processes
    ) -> RenewalRow | None:
        """Extend a valid lease and report on *running*, in one transaction."""
        with _writing(connection):
            beat = run(
                connection,
                settle_sql.BEAT,
                worker_id=_hex(worker_id),
                ttl=ttl.total_seconds(),
            )
            if beat.rowcount == 0:
                return None
            rows = run(
                connection,
                settle_sql.RUNNING,
                worker_id=_hex(worker_id),
                running=json.dumps([[_hex(id_), fence] for id_, fence in running]),
            ).all()
            paused, schema, code = run(connection, settle_sql.NEWS).one()
        lost = [_dashed(row[0]) for row in rows if not row[3]]
        cancelled = [(_dashed(r[0]), r[2]) for r in rows if r[3] and r[1]]
        return RenewalRow(lost, cancelled, json.loads(paused), schema, code)

    def rescue(
        self, connection: Connection, *, grace: timedelta, delay: timedelta, limit: int
    ) -> list[Rescued]:
        """Free jobs of workers that an earlier look found suspect; see settle_sql."""
        seconds = grace.total_seconds()
        with _writing(connection):
            run(connection, settle_sql.LOCK)
            picked = run(
                connection,
                settle_sql.PICK,
                grace=seconds,
                patience=min(PATIENCE, seconds),
                limit=limit,
            ).all()
            run(connection, settle_sql.SUSPECT, grace=seconds)
            if not picked:
                return []
            freed = run(
                connection,
                settle_sql.FREE,
                ids=json.dumps([row[0] for row in picked]),
                delay=delay.total_seconds(),
            ).all()
            states = {id_: (state, bool(again)) for id_, state, again in freed}
            attempts = [_lost(row) for row in picked if row[0] in states]
            run(connection, settle_sql.ATTEMPTS, rows=json.dumps(attempts))
            again_ids = [id_ for id_, (_, again) in states.items() if again]
            run(connection, settle_sql.NEW_BODIES, ids=json.dumps(again_ids))
        return [
            Rescued(
                _dashed(id_),
                name,
                queue,
                states[id_][0],
                number,
                _dashed(owner),
                bool(timed_out),
            )
            for id_, _, owner, number, _, name, queue, _, timed_out in picked
            if id_ in states
        ]

    def end_backends(self, connection: Connection, worker_ids: Sequence[str]) -> int:  # noqa: ARG002 - see below
        """Do nothing: a transaction lives in its own process, and ends with it."""
        return 0


@contextmanager
def _writing(connection: Connection) -> Iterator[None]:
    """Make several statements one write transaction, where nobody else has begun one."""
    dbapi: Any = connection.connection.dbapi_connection
    if dbapi.in_transaction or dbapi.isolation_level is not None:
        yield
        return
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")


def _without_repeats(rows: Sequence[SettleRow]) -> Iterable[list[SettleRow]]:
    """Split *rows* so that no id comes twice in one part; mostly one part."""
    seen: Counter[str] = Counter()
    parts: list[list[SettleRow]] = []
    for row in rows:
        place = seen[row.id]
        seen[row.id] += 1
        if place == len(parts):
            parts.append([])
        parts[place].append(row)
    return parts


def _recorded(row: SettleRow) -> str:
    if row.timed_out:
        return "timed_out"
    return {"retry": "failed", "snooze": "snoozed"}.get(row.outcome, row.outcome)


def _lost(row: Sequence[Any]) -> dict[str, object]:
    id_, fence, owner, number, started_at, _, _, worker, timed_out = row
    return {
        "id": id_,
        "fence": fence,
        "number": number,
        "worker_id": owner,
        "worker": worker,
        "started_at": started_at,
        "outcome": "timed_out" if timed_out else "lost",
        "error_type": "JobTimeoutError" if timed_out else "WorkerLost",
        "error": "the deadline passed and the worker did not end the attempt"
        if timed_out
        else "worker lost: its lease ran out while the attempt ran",
    }


def _job_rows(jobs: Iterable[tuple[str, NewJob]]) -> str:
    return json.dumps(
        [
            {
                "id": _hex(id_),
                "tenant": job.tenant,
                "name": job.name,
                "key": job.key,
                "queue": job.queue,
                "priority": job.priority,
                "input": job.input,
                "max_attempts": job.max_attempts,
                "run_at": job.run_at and _stored(job.run_at),
                "after": job.after,
                "mode": job.mode,
                "enqueued_by": job.enqueued_by,
                "traceparent": job.traceparent,
            }
            for id_, job in jobs
        ]
    )


def _hex(id_: str) -> str:
    """Return *id_* as SQLAlchemy stores a Uuid here."""
    return id_.replace("-", "")


def _hexes(ids: Iterable[str]) -> str:
    return json.dumps([_hex(id_) for id_ in ids])


def _dashed(id_: str) -> str:
    return str(UUID(id_))


def _stored(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"


def _instant(stored: str) -> datetime:
    return datetime.fromisoformat(stored).replace(tzinfo=UTC)
