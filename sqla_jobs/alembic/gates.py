"""Migrations that announce a backfill, and those that wait for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alembic import op
from alembic.util import CommandError
from sqlalchemy import delete, insert, literal, select, table, update

from sqla_jobs import clock
from sqla_jobs.backfills.ledger import ENDED
from sqla_jobs.exc import BackfillPendingError
from sqla_jobs.models import Backfill, BackfillFailure

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row


class BackfillGateError(BackfillPendingError, CommandError):
    """The same error as Alembic's own: its command line prints it in one line."""


def declare_backfill(name: str, *, table: str) -> None:
    """Write the backfill *name* of *table* into the ledger; in the expanding revision.

    Where the table is empty there is nothing to do, so a new database passes the gate
    of the contracting revision at once (``skipped``). After a downgrade it is pending
    once more. Part of the migration's transaction.
    """
    connection = _online(name, "declare_backfill")
    status = "pending" if _has_rows(connection, table) else "skipped"
    begun = {
        "status": status,
        "table_name": table,
        "cursor": None,
        "checksum": None,
        "remain_sql": None,
        "reason": None,
        "pass_number": 1,
        "rows_done": 0,
        "rows_estimate": None,
        "failures": 0,
        "started_at": None,
        "finished_at": None,
        "declared_at": clock.now(),
    }
    there = Backfill.name == name
    known = connection.execute(select(Backfill.name).where(there)).first()
    if known is None:
        connection.execute(insert(Backfill).values(name=name, fence=0, **begun))
    else:
        # A run that is still at it loses its hold.
        again = {"fence": Backfill.fence + 1, "holder": None, "lease_until": None}
        connection.execute(update(Backfill).where(there).values(**begun | again))
        # Of rows as they were before the downgrade.
        connection.execute(
            delete(BackfillFailure).where(BackfillFailure.backfill == name)
        )


def require_backfill(name: str) -> None:
    """Refuse to go on until the backfill *name* is done; in the contracting revision.

    Done is not enough: processes of the old release may have written rows since. So the
    rows that are still to do are looked for as well, in the migration's transaction.

    :raises BackfillPendingError: with the commands to run; Alembic prints it.
    """
    connection = _online(name, "require_backfill")
    row = connection.execute(
        select(
            Backfill.status,
            Backfill.remain_sql,
            Backfill.table_name,
            Backfill.checksum,
            Backfill.reason,
        ).where(Backfill.name == name)
    ).first()
    run = f"sqla-jobs backfill run {name}"
    if row is None:
        raise BackfillGateError(name, "never", "was never run", [run])
    if row.status not in ENDED:
        raise BackfillGateError(
            name, "not-done", f"is {row.status}", _next(name, row.status)
        )
    if _rows_remain(connection, row):
        again = f"sqla-jobs backfill resume --from-start {name}"
        detail = "was done, but rows were written since that are still to do"
        raise BackfillGateError(name, "rows-remain", detail, [again, run])


def _rows_remain(connection: Connection, row: Row[*tuple[Any, ...]]) -> bool:
    if row.remain_sql is not None:
        return connection.exec_driver_sql(row.remain_sql).first() is not None
    # Skipped because its table was empty: nobody has compiled yet what is to do, so
    # whatever was written since has to be looked at by a run. (Skipped by somebody's
    # word has a reason, and what was run has a checksum.)
    unseen = row.status == "skipped" and row.reason is None and row.checksum is None
    return unseen and _has_rows(connection, row.table_name)


def _next(name: str, status: str) -> list[str]:
    if status == "running":
        return [f"sqla-jobs backfill status {name}"]
    run = f"sqla-jobs backfill run {name}"
    resume = f"sqla-jobs backfill resume {name}"
    return [resume, run] if status == "cancelled" else [run]


def _online(name: str, operation: str) -> Connection:
    if op.get_context().as_sql:
        detail = f"cannot be looked at by {operation}() without a database (--sql)"
        raise BackfillGateError(name, "offline", detail, ["alembic upgrade"])
    return op.get_bind()


def _has_rows(connection: Connection, name: str) -> bool:
    some = select(literal(1)).select_from(table(name)).limit(1)
    return connection.execute(some).first() is not None
