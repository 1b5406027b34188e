"""SQLite: the embedded default. One writer, no skipping of locked rows, no NOTIFY."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sqla_jobs.dialects.base import QueueDialect, run
from sqla_jobs.dialects.rows import Claimed, Existing, NewJob, RenewalRow, Rescued
from sqla_jobs.dialects.sqlite import claim_sql, connecting, enqueue_sql, settle_sql
from sqla_jobs.dialects.sqlite.values import (
    Picked,
    attempt_row,
    hex_of,
    hexes,
    id_of,
    instant_of,
    job_rows,
    rescued_row,
    settle_rows,
    without_repeats,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import timedelta

    from sqlalchemy import Connection, Engine, Row

    from sqla_jobs.dialects.rows import SettleRow
    from sqla_jobs.exc import JobsError

SUSPICION: Final = 5.0
"""Seconds, at least, between a rescuer's two looks at an expired lease."""
IN_LINE: Final = 1.0
"""Seconds after which a rescuer that waited its turn takes nothing."""


class SQLiteDialect(QueueDialect):
    """Statements for SQLite 3.38 and later (``->>``, UPDATE … FROM, RETURNING)."""

    name: ClassVar = "sqlite"
    skip_locked: ClassVar = False
    notify: ClassVar = False
    own_driver: ClassVar = "pysqlite"

    # --- connections -----------------------------------------------------------------

    def arrange(self, engine: Engine) -> None:
        """Make *engine*, one of the library's own, wait its turn and write at once."""
        connecting.arrange(engine)

    def refuse_unfit(self, connection: Connection) -> None:
        """Refuse connections whose transactions fail, or commit, at the wrong time."""
        connecting.refuse_unfit(connection)

    def refuse_unshared(self, connection: Connection) -> None:
        """Refuse a database in memory."""
        connecting.refuse_memory(connection)

    def begin_writing(self, connection: Connection) -> None:
        """Begin the transaction with ``BEGIN IMMEDIATE``, unless it is begun."""
        connecting.begin_writing(connection)

    def autocommits(self, connection: Connection) -> bool:
        """Whether each statement on *connection* commits by itself."""
        return connecting.autocommits(connection)

    def is_busy(self, error: BaseException) -> bool:
        """Whether another writer was in the way."""
        return connecting.is_busy(error)

    def explained(self, error: BaseException) -> JobsError | None:
        """Return what a database error says about the engine."""
        return connecting.explained(error)

    # --- enqueue ---------------------------------------------------------------------

    def insert_jobs(self, connection: Connection, jobs: Sequence[NewJob]) -> set[str]:
        """Insert what has no duplicate, then the bodies of what was inserted."""
        rows = job_rows((job.id, job) for job in jobs)
        with _writing(connection):
            ids = list(run(connection, enqueue_sql.INSERT, jobs=rows).scalars())
            if ids:
                given = json.dumps(ids)
                run(connection, enqueue_sql.INSERT_BODIES, jobs=rows, ids=given)
        return {id_of(id_) for id_ in ids}

    def find_existing(
        self, connection: Connection, jobs: Sequence[NewJob]
    ) -> list[Existing]:
        """Return the rows that hold an identity or an id of *jobs*."""
        rows = job_rows((job.id, job) for job in jobs)
        found = run(connection, enqueue_sql.EXISTING, jobs=rows)
        return [_existing(row, row.state, "kept") for row in found]

    def renew_jobs(
        self, connection: Connection, jobs: Sequence[tuple[str, NewJob]]
    ) -> list[Existing]:
        """Replace or rerun existing rows; nobody else writes meanwhile."""
        given = dict(jobs)
        changed = []
        acts: dict[str, list[tuple[str, NewJob]]] = {}
        with _writing(connection):
            for row in run(connection, enqueue_sql.JUDGE, jobs=job_rows(jobs)):
                act = row.act
                id_ = id_of(row.id)
                acts.setdefault(act, []).append((id_, given[id_]))
                outcome = act if act in ("kept", "replaced") else "rerun"
                state = "ready" if act == "reset" else row.state
                changed.append(_existing(row, state, outcome))
            for act, statement in enqueue_sql.RENEW.items():
                if act not in acts:
                    continue
                rows = job_rows(acts[act])
                if act == "reset":
                    run(connection, enqueue_sql.KEEP_SUCCESSES, jobs=rows)
                run(connection, statement, jobs=rows)
                run(connection, enqueue_sql.RENEW_BODY[act == "again"], jobs=rows)
                if act == "reset":
                    run(connection, enqueue_sql.DROP_OUTPUTS, jobs=rows)
        return changed

    # --- claim -----------------------------------------------------------------------

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
        due = self.next_due(connection, list(rooms), unknown)
        if due is None or due > 0:
            return []  # Without standing in line for the right to write.
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
                worker_id=hex_of(worker_id),
                ids=json.dumps(ids),
                limits=json.dumps(dict(limits)),
                inline=inline,
            ).all()
        return [_claimed(row) for row in rows]

    def inputs_of(self, connection: Connection, ids: Sequence[str]) -> dict[str, str]:
        """Return the inputs of *ids* as JSON text."""
        rows = run(connection, claim_sql.INPUTS, ids=hexes(ids))
        return {id_of(row.job_id): row.input for row in rows}

    def next_due(
        self, connection: Connection, queues: Sequence[str], unknown: Collection[str]
    ) -> float | None:
        """Return the seconds until the next job of *queues* is due."""
        names = json.dumps(list(unknown))
        waits = []
        for queue in queues:
            row = run(connection, claim_sql.NEXT_DUE, queue=queue, unknown=names).one()
            if row[0] is not None:
                wait = instant_of(row[0]) - instant_of(row[1])
                waits.append(wait.total_seconds())
        return min(waits, default=None)

    # --- settle ----------------------------------------------------------------------

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
        owner = hex_of(worker_id)
        outputs, attempts, again = [], [], []
        done = set()
        with _writing(connection):
            ids = hexes(row.id for row in rows)
            found = run(connection, settle_sql.STARTED, ids=ids)
            started: dict[str, str | None] = {r.id: r.attempted_at for r in found}
            # UPDATE … FROM takes one of several matching rows only.
            for batch in without_repeats(rows):
                given = {hex_of(row.id): row for row in batch}
                settled = run(
                    connection,
                    settle_sql.SETTLE,
                    worker_id=owner,
                    rows=settle_rows(batch),
                ).all()
                for id_, fence in settled:
                    row = given[id_]
                    done.add(row.id)
                    renewed = fence > row.fence
                    if renewed:
                        again.append(id_)
                    elif row.outcome == "succeeded" and row.output is not None:
                        outputs.append(
                            {"id": id_, "fence": row.fence, "output": row.output}
                        )
                    if row.outcome != "released" and (
                        row.outcome != "succeeded" or renewed
                    ):
                        attempts.append(
                            attempt_row(
                                row,
                                worker_id=worker_id,
                                worker=worker,
                                started_at=started.get(id_),
                            )
                        )
            _write_children(connection, outputs, attempts, again)
        return done

    def hold(
        self, connection: Connection, *, job_id: str, fence: int, worker_id: str
    ) -> bool:
        """Take the right to write, and tell whether the attempt still owns its job."""
        held = run(
            connection,
            settle_sql.HOLD,
            job_id=hex_of(job_id),
            fence=fence,
            worker_id=hex_of(worker_id),
        )
        return held.rowcount == 1

    # --- leases ----------------------------------------------------------------------

    def renew(
        self,
        connection: Connection,
        *,
        worker_id: str,
        ttl: timedelta,
        running: Sequence[tuple[str, int]],
        backends: Sequence[int],  # noqa: ARG002 - there are no server processes
        listening: bool | None,
        stuck: int,
        sign: tuple[str, str] | None,  # noqa: ARG002 - nor notifications
    ) -> RenewalRow | None:
        """Extend a lease that no rescuer may take, and report on *running*."""
        owner = hex_of(worker_id)
        with _writing(connection):
            beat = run(
                connection,
                settle_sql.BEAT,
                worker_id=owner,
                ttl=ttl.total_seconds(),
                suspicion=SUSPICION,
                listening=listening,
                stuck=stuck,
            )
            if beat.rowcount == 0:
                return None
            rows = run(
                connection,
                settle_sql.RUNNING,
                worker_id=owner,
                running=json.dumps([[hex_of(id_), fence] for id_, fence in running]),
            ).all()
            paused, schema, code = run(connection, settle_sql.NEWS).one()
        lost = [id_of(row.id) for row in rows if not row.held]
        cancelled = [
            (id_of(row.id), row.cancel_reason)
            for row in rows
            if row.held and row.cancelled
        ]
        return RenewalRow(lost, cancelled, json.loads(paused), schema, code)

    def rescue(
        self, connection: Connection, *, grace: timedelta, delay: timedelta, limit: int
    ) -> list[Rescued]:
        """Free jobs of workers that an earlier look found suspect; see settle_sql."""
        seconds = grace.total_seconds()
        with _writing(connection):
            picked: list[Picked] = []
            if connecting.waited(connection) < IN_LINE:
                found = run(
                    connection,
                    settle_sql.PICK,
                    grace=seconds,
                    suspicion=SUSPICION,
                    limit=limit,
                )
                picked = [Picked(*row) for row in found.all()]
            run(connection, settle_sql.SUSPECT, grace=seconds)
            if not picked:
                return []
            freed = run(
                connection,
                settle_sql.FREE,
                ids=json.dumps([each.id for each in picked]),
                delay=delay.total_seconds(),
            ).all()
            states = {row.id: row.state for row in freed}
            again = [row.id for row in freed if row.again]
            picked = [each for each in picked if each.id in states]
            attempts = [rescued_row(each) for each in picked]
            _write_children(connection, [], attempts, again)
        return [
            Rescued(
                id_of(each.id),
                each.name,
                each.queue,
                states[each.id],
                each.number,
                id_of(each.worker_id) if each.worker_id else "",
                each.why == "timed_out",
            )
            for each in picked
        ]

    def end_backends(self, connection: Connection, worker_ids: Sequence[str]) -> int:  # noqa: ARG002 - see below
        """Do nothing: a transaction lives in its own process, and ends with it."""
        return 0


def _write_children(
    connection: Connection,
    outputs: Sequence[Mapping[str, object]],
    attempts: Sequence[Mapping[str, object]],
    again: Sequence[str],
) -> None:
    """Write what ended attempts leave beside their rows."""
    if outputs:
        run(connection, settle_sql.OUTPUTS, rows=json.dumps(outputs))
    if attempts:
        run(connection, settle_sql.ATTEMPTS, rows=json.dumps(attempts))
    if again:
        run(connection, settle_sql.NEW_BODIES, ids=json.dumps(again))


@contextmanager
def _writing(connection: Connection) -> Iterator[None]:
    """Make several statements one write transaction, the caller's where it has one."""
    alone = connecting.autocommits(connection)
    connecting.begin_writing(connection)
    if not alone:
        yield
        return
    try:
        yield
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")


def _existing(row: Row[Any], state: str, outcome: str) -> Existing:
    return Existing(
        id_of(row.id), row.tenant, row.name, row.key, row.queue, state, outcome
    )


def _claimed(row: Row[Any]) -> Claimed:
    facts: dict[str, Any] = dict(row._mapping)
    facts["id"] = id_of(row.id)
    facts["run_at"] = instant_of(row.run_at)
    return Claimed(**facts)
