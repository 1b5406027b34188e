"""The ledger: who runs a backfill, how far it is, and what was asked of it.

A run holds a backfill by ``(name, fence, holder)``. Every write of a run matches all
three and looks at the row count, in the transaction of its batch: a run that was taken
over while it was frozen matches nothing, and its batch is rolled back.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import attrs
from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from sqla_jobs import clock
from sqla_jobs.backfills.keys import Key, dump_key, load_key
from sqla_jobs.exc import (
    BackfillAppliedError,
    BackfillLostError,
    BackfillRunningError,
    BackfillStatusError,
    BackfillUnknownError,
)
from sqla_jobs.models import Backfill, BackfillEvent, BackfillFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import Session

    from sqla_jobs.declare.backfill import BackfillSpec

LEASE: Final = timedelta(seconds=60)
"""How long a run that says nothing keeps its backfill."""
STARTABLE: Final = ("pending", "paused", "failed")
ENDED: Final = ("done", "skipped")
"""The statuses in which nothing is left to do."""


@attrs.frozen
class Hold:
    """A run's claim on its backfill, and where it goes on."""

    name: str
    fence: int
    holder: UUID
    cursor: Key | None
    pass_number: int


@attrs.frozen
class Orders:
    """What the ledger asks of a run after its batch."""

    requested: str | None
    batch_size: int | None
    rate: float | None


def record(
    session: Session, name: str, kind: str, by: str | None, detail: str | None = None
) -> None:
    """Add an event to the history of *name*."""
    session.execute(
        insert(BackfillEvent).values(
            id=uuid4(), backfill=name, at=clock.now(), kind=kind, by=by, detail=detail
        )
    )


def register(session: Session, spec: BackfillSpec, table: str) -> bool:
    """Write *spec* into the ledger unless it is there; tell whether it was written."""
    sqlite_ = session.get_bind().dialect.name == "sqlite"
    made = (sqlite.insert if sqlite_ else postgresql.insert)(Backfill).values(
        name=spec.name,
        after=spec.after,
        table_name=table,
        status="pending",
        pass_number=1,
        rows_done=0,
        failures=0,
        fence=0,
        declared_at=clock.now(),
    )
    written = made.on_conflict_do_nothing().returning(Backfill.name)
    return session.execute(written).first() is not None


def claim(
    session: Session,
    name: str,
    holder_name: str,
    checksum: str,
    remain_sql: str | None = None,
) -> Hold:
    """Take *name* for a run, in one statement; raise why it cannot be taken."""
    holder = uuid4()
    free = or_(
        Backfill.status.in_(STARTABLE),
        (Backfill.status == "running") & (Backfill.lease_until <= clock.now()),
    )
    taken = session.execute(
        update(Backfill)
        .where(Backfill.name == name, free)
        .where(or_(Backfill.checksum.is_(None), Backfill.checksum == checksum))
        .values(
            status="running",
            fence=Backfill.fence + 1,
            holder=holder,
            holder_name=holder_name,
            checksum=checksum,
            remain_sql=remain_sql,
            lease_until=clock.shifted(LEASE),
            requested=None,
            reason=None,
            error_type=None,
            error=None,
            beat_at=clock.now(),
            started_at=func.coalesce(Backfill.started_at, clock.now()),
        )
        .returning(Backfill.fence, Backfill.cursor, Backfill.pass_number)
        .execution_options(synchronize_session=False)
    ).first()
    if taken is None:
        raise _why_not(session, name, checksum)
    record(session, name, "started", holder_name)
    cursor = None if taken.cursor is None else load_key(taken.cursor)
    return Hold(name, taken.fence, holder, cursor, taken.pass_number)


def _why_not(session: Session, name: str, checksum: str) -> Exception:
    row = session.execute(
        select(
            Backfill.status,
            Backfill.holder_name,
            Backfill.lease_until,
            Backfill.checksum,
        ).where(Backfill.name == name)
    ).first()
    if row is None:
        return BackfillUnknownError(name, ())
    if row.status in ENDED:
        return BackfillAppliedError(name, row.status)
    if row.status == "running":
        return BackfillRunningError(name, row.holder_name, row.lease_until)
    if row.status == "cancelled":
        remedy = f"`sqla-jobs backfill resume {name}` makes it pending again"
    elif row.checksum != checksum:
        remedy = (
            "and its declaration is another one than it began with: begin again with"
            f" `sqla-jobs backfill resume --from-start {name}`"
        )
    else:
        remedy = "it changed in this moment; run it again"
    return BackfillStatusError(name, row.status, remedy)


def advance(
    session: Session,
    hold: Hold,
    *,
    rows: int = 0,
    cursor: Key | None,
    pass_number: int,
    failures: int = 0,
) -> Orders:
    """Write how far the run is, and renew its lease; return what is asked of it.

    The last statement of the batch's transaction: the ledger's row is locked after the
    application's, and only for the commit.

    :raises BackfillLostError: somebody else has the backfill.
    """
    found = session.execute(
        _held(hold)
        .values(
            rows_done=Backfill.rows_done + rows,
            failures=Backfill.failures + failures,
            cursor=None if cursor is None else dump_key(cursor),
            pass_number=pass_number,
            beat_at=clock.now(),
            lease_until=clock.shifted(LEASE),
        )
        .returning(Backfill.requested, Backfill.batch_size, Backfill.rate)
        .execution_options(synchronize_session=False)
    ).first()
    if found is None:
        raise BackfillLostError(hold.name)
    return Orders(found.requested, found.batch_size, found.rate)


def finish(
    session: Session,
    hold: Hold,
    status: str,
    *,
    by: str,
    error: BaseException | None = None,
    reason: str | None = None,
) -> None:
    """End the run with *status*; :exc:`.BackfillLostError` when it is not ours."""
    ended = status in {"done", "cancelled"}
    _write(
        session,
        hold,
        status=status,
        holder=None,
        lease_until=None,
        requested=None,
        reason=reason,
        error_type=None if error is None else type(error).__name__,
        error=None if error is None else str(error)[:2000],
        beat_at=clock.now(),
        finished_at=clock.now() if ended else None,
    )
    record(session, hold.name, status, by, reason)


def note_estimate(session: Session, hold: Hold, rows: int | None) -> None:
    """Write how many rows there are in all, as far as they were counted."""
    if rows is not None:
        _write(session, hold, rows_estimate=Backfill.rows_done + rows)


def _held(hold: Hold) -> Any:  # noqa: ANN401 - an Update of one class has no short name
    return update(Backfill).where(
        Backfill.name == hold.name,
        Backfill.fence == hold.fence,
        Backfill.holder == hold.holder,
        Backfill.status == "running",
    )


def _write(session: Session, hold: Hold, **values: object) -> None:
    written = (
        _held(hold)
        .values(**values)
        .returning(Backfill.name)
        .execution_options(synchronize_session=False)
    )
    if session.execute(written).first() is None:
        raise BackfillLostError(hold.name)


def add_failure(session: Session, name: str, key: str, error: Exception) -> None:
    """Keep the *key* of a row that failed."""
    session.execute(
        insert(BackfillFailure).values(
            backfill=name,
            key_text=key,
            error_type=type(error).__name__,
            error=str(error)[:2000],
            at=clock.now(),
            state="open",
        )
    )


def failures(session: Session, name: str) -> Sequence[BackfillFailure]:
    """Return the rows that failed, by the time they did."""
    return session.scalars(
        select(BackfillFailure)
        .where(BackfillFailure.backfill == name)
        .order_by(BackfillFailure.at, BackfillFailure.key_text)
    ).all()


def drop_failures(session: Session, name: str) -> None:
    """Forget the failures of *name* that were not accepted."""
    gone = delete(BackfillFailure).where(
        BackfillFailure.backfill == name, BackfillFailure.state == "open"
    )
    session.execute(gone.execution_options(synchronize_session=False))


def change(
    session: Session, name: str, where: ColumnElement[bool], **values: object
) -> bool:
    """Write *values* into the row of *name* if it fits *where*; tell whether it did."""
    written = (
        update(Backfill)
        .where(Backfill.name == name, where)
        .values(**values)
        .returning(Backfill.name)
        .execution_options(synchronize_session=False)
    )
    return session.execute(written).first() is not None
