"""What there is of backfills: declared, recorded in the ledger, and still to do."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import attrs
from sqlalchemy import select

from sqla_jobs import clock
from sqla_jobs.backfills.ledger import ENDED
from sqla_jobs.backfills.progress import Progress
from sqla_jobs.models import Backfill

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy.orm import Session

    from sqla_jobs.declare.backfill import BackfillSpec
    from sqla_jobs.declare.registry import Jobs


@attrs.frozen(kw_only=True)
class BackfillReport:
    """One backfill: what the code declares and what the ledger says, together."""

    name: str
    status: str
    """As stored, or ``never`` (not in the ledger) or ``stalled`` (its runner is gone)."""
    declared: bool
    """Whether the code knows it."""
    after: str | None
    table: str | None
    rows_done: int = 0
    rows_estimate: int | None = None
    percent: float | None = None
    rows_per_second: float | None = None
    """Over its whole time; None when it does not run."""
    eta: timedelta | None = None
    failures: int = 0
    """Rows that failed and were neither retried nor accepted."""
    pass_number: int = 0
    requested: str | None = None
    """``pause`` or ``cancel``: asked for, and not yet obeyed."""
    holder: str | None = None
    reason: str | None = None
    error_type: str | None = None
    error: str | None = None
    batch_size: int | None = None
    """The size that was set while it was there; None: the declared one."""
    rate: float | None = None
    """The rows per second that were set; None: the declared rate."""
    started_at: datetime | None = None
    beat_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.status in ENDED

    def as_dict(self) -> dict[str, Any]:
        """For JSON: instants as ISO 8601 texts, durations in seconds."""
        return {name: _plain(value) for name, value in attrs.asdict(self).items()}


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else value


def backfill_reports(
    session: Session, specs: Mapping[str, BackfillSpec]
) -> list[BackfillReport]:
    """Return every backfill that *specs* declares or the ledger holds, by name.

    Emits one SELECT. It counts nothing: the totals are those of the ledger.
    """
    rows = session.execute(select(Backfill, clock.now().label("seen_at"))).all()
    found = {row.name: _recorded(row, specs.get(row.name), at) for row, at in rows}
    for name, spec in specs.items():
        if name not in found:
            found[name] = BackfillReport(
                name=name,
                status="never",
                declared=True,
                after=spec.after,
                table=None,
            )
    return [found[name] for name in sorted(found)]


def backfill_report(
    session: Session, name: str, specs: Mapping[str, BackfillSpec]
) -> BackfillReport | None:
    """Return the backfill *name*, or None when neither side knows it."""
    found = backfill_reports(session, specs)
    return next((each for each in found if each.name == name), None)


def pending_backfills(session: Session, jobs: Jobs) -> Sequence[BackfillReport]:
    """Return the backfills which are not done, by name: those a deploy waits for.

    Those of *jobs* and those of the ledger, whether this code declares them or not.
    Emits one SELECT in the caller's transaction.
    """
    return pending(backfill_reports(session, jobs.backfills))


def pending(reports: Iterable[BackfillReport]) -> list[BackfillReport]:
    """Return those of *reports* in which something is left to do."""
    return [report for report in reports if not report.ended]


def _recorded(
    row: Backfill, spec: BackfillSpec | None, seen_at: datetime
) -> BackfillReport:
    status = row.status
    running = status == "running"
    if running and (row.lease_until is None or row.lease_until <= seen_at):
        status, running = "stalled", False
    speed = _speed(row) if running else None
    progress = Progress(row.rows_done, row.rows_estimate, speed, row.status in ENDED)
    return BackfillReport(
        name=row.name,
        status=status,
        declared=spec is not None,
        after=row.after if spec is None else spec.after,
        table=row.table_name,
        rows_done=row.rows_done,
        rows_estimate=row.rows_estimate,
        percent=progress.percent,
        rows_per_second=speed,
        eta=progress.eta if running else None,
        failures=row.failures,
        pass_number=row.pass_number,
        requested=row.requested,
        holder=row.holder_name,
        reason=row.reason,
        error_type=row.error_type,
        error=row.error,
        batch_size=row.batch_size,
        rate=row.rate,
        started_at=row.started_at,
        beat_at=row.beat_at,
        finished_at=row.finished_at,
    )


def _speed(row: Backfill) -> float | None:
    if row.started_at is None or row.beat_at is None:
        return None
    seconds = (row.beat_at - row.started_at).total_seconds()
    return row.rows_done / seconds if seconds > 0 else None
