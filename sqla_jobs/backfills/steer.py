"""What people do to backfills: requests to a run, or changes where nothing runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import and_, or_, select, true, update

from sqla_jobs import clock
from sqla_jobs.backfills.keys import target_of
from sqla_jobs.backfills.ledger import (
    ENDED,
    STARTABLE,
    change,
    drop_failures,
    record,
    register,
)
from sqla_jobs.exc import BackfillStatusError, BackfillUnknownError, InvalidOptionError
from sqla_jobs.models import Backfill, BackfillFailure

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import Session

    from sqla_jobs.declare.backfill import BackfillSpec

_FREE: Final = {"holder": None, "lease_until": None, "requested": None}


# Built when they are asked: a test may have frozen the clock.
def _alive() -> ColumnElement[bool]:
    return and_(Backfill.status == "running", Backfill.lease_until > clock.now())


def _gone() -> ColumnElement[bool]:
    return and_(Backfill.status == "running", Backfill.lease_until <= clock.now())


def pause_backfill(
    session: Session, name: str, *, by: str | None = None, reason: str | None = None
) -> str:
    """Stop a run after its batch, or keep one from starting.

    Returns ``requested`` while a run has not obeyed yet, else ``paused``.
    """
    return _stop(session, name, "pause", status="paused", by=by, reason=reason)


def cancel_backfill(
    session: Session, name: str, *, by: str | None = None, reason: str | None = None
) -> str:
    """End a backfill; what was committed stays. Returns ``requested`` or ``cancelled``."""
    return _stop(session, name, "cancel", status="cancelled", by=by, reason=reason)


def _stop(
    session: Session,
    name: str,
    asked: str,
    *,
    status: str,
    by: str | None,
    reason: str | None,
) -> str:
    if change(session, name, _alive(), requested=asked, reason=reason):
        outcome = "requested"
    else:
        free = or_(Backfill.status.in_(STARTABLE), _gone())
        # The fence grows: a frozen run that comes back must not go on.
        if not change(
            session,
            name,
            free,
            status=status,
            reason=reason,
            fence=Backfill.fence + 1,
            **_FREE,
        ):
            raise _refused(session, name, f"only one that is not over can be {status}")
        outcome = status
    record(session, name, asked, by, reason)
    return outcome


def resume_backfill(
    session: Session, name: str, *, from_start: bool = False, by: str | None = None
) -> None:
    """Make a paused, failed or cancelled backfill pending; it is run by a run.

    :param from_start: walk through all rows again, as the declaration is now.
    """
    values: dict[str, object] = {"status": "pending", "reason": None, **_FREE}
    if from_start:
        values |= {"cursor": None, "pass_number": 1, "checksum": None}
        values["finished_at"] = None
    stopped = [*STARTABLE, "cancelled"]
    if from_start:
        # Rows were written since, which a migration has found.
        stopped += ENDED
    if not change(session, name, Backfill.status.in_(stopped), **values):
        remedy = "only a paused, failed or cancelled one can be resumed"
        raise _refused(session, name, remedy)
    record(session, name, "resume", by, "from the start" if from_start else None)


def set_backfill_pace(
    session: Session,
    name: str,
    *,
    batch_size: int | None = None,
    rate: float | None = None,
    by: str | None = None,
) -> None:
    """Set batch size or rows per second; a run takes them from its next batch on."""
    values: dict[str, object] = {}
    if batch_size is not None:
        values["batch_size"] = _positive("batch_size", batch_size)
    if rate is not None:
        values["rate"] = _positive("rate", rate)
    if not values:
        raise InvalidOptionError("batch_size, rate", "are both missing")
    if not change(session, name, true(), **values):
        raise BackfillUnknownError(name, _names(session))
    told = ", ".join(f"{option}={value}" for option, value in values.items())
    record(session, name, "set", by, told)


def _positive(option: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise InvalidOptionError(option, f"is {value!r}, not above 0")
    return value


def accept_failures(
    session: Session, name: str, *, reason: str, by: str | None = None
) -> int:
    """Let the rows that failed stay as they are; return how many there were."""
    accepted = session.scalars(
        update(BackfillFailure)
        .where(BackfillFailure.backfill == name, BackfillFailure.state == "open")
        .values(state="accepted")
        .returning(BackfillFailure.key_text)
        .execution_options(synchronize_session=False)
    ).all()
    if not change(session, name, ~_alive(), failures=0):
        raise _refused(session, name, "pause it first")
    record(session, name, "accept", by, reason)
    return len(accepted)


def retry_failures(session: Session, name: str, *, by: str | None = None) -> None:
    """Forget the failures, so that the next run tries these rows again."""
    stopped = Backfill.status.in_(STARTABLE)
    fresh = {"cursor": None, "pass_number": 1, "failures": 0, "status": "pending"}
    if not change(session, name, stopped, **fresh):
        raise _refused(session, name, "pause it first")
    drop_failures(session, name)
    record(session, name, "retry-failures", by)


def baseline_backfill(
    session: Session, spec: BackfillSpec, *, reason: str, by: str | None = None
) -> bool:
    """Mark a backfill as skipped, where its tables were created as they end up.

    Tells whether it was marked; one that has begun is left alone. The gate of its
    migration still looks for rows that are to do.
    """
    target = target_of(spec)
    remain = target.remain_sql(session.get_bind().dialect)
    register(session, spec, str(target.table))
    untouched = (Backfill.status == "pending") & (Backfill.rows_done == 0)
    if change(
        session,
        spec.name,
        untouched,
        status="skipped",
        reason=reason,
        remain_sql=remain,
    ):
        record(session, spec.name, "baseline", by, reason)
        return True
    return False


def _refused(session: Session, name: str, remedy: str) -> Exception:
    status = session.scalar(select(Backfill.status).where(Backfill.name == name))
    if status is None:
        return BackfillUnknownError(name, _names(session))
    return BackfillStatusError(name, status, remedy)


def _names(session: Session) -> list[str]:
    return list(session.scalars(select(Backfill.name)))
