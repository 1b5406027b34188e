"""A run: batch after batch, each in one transaction with the place it reached."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import attrs
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.backfills import ledger
from sqla_jobs.backfills.batch import (
    Batch,
    is_timeout,
    is_transient,
    run_batch,
)
from sqla_jobs.backfills.checksum import backfill_checksum
from sqla_jobs.backfills.keys import Key, Target, load_key, target_of
from sqla_jobs.backfills.ledger import Hold, Orders
from sqla_jobs.backfills.progress import MovingRate, Progress
from sqla_jobs.declare.backfill import BackfillSpec, Skip
from sqla_jobs.exc import BackfillFailedError, BackfillLostError
from sqla_jobs.models import Backfill

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSES: Final = 3
"""How often the table is walked through: rows land behind the place reached."""
TRIES: Final = 5
"""How often a batch is tried whose transaction another one broke."""
COUNT_LIMIT: Final = 1_000_000
"""Rows that are counted at the start; more are not worth the wait."""
BEAT: Final = 10.0
"""Seconds that a waiting run is silent at most; far below its lease."""


@attrs.frozen
class BackfillResult:
    """How a run ended."""

    status: str
    """done, paused, cancelled, or running when it was told to stop for now."""
    rows: int
    """Rows that this run changed."""
    failed: int


@attrs.define
class _Run:
    spec: BackfillSpec
    target: Target
    sessions: Callable[[], Session]
    by: str
    hold: Hold
    stop: threading.Event
    progress: Callable[[Progress, int], None]
    cursor: Key | None
    pass_number: int
    rows: int = 0
    failed: int = 0
    largest: int | None = None
    """Rows of a batch that were not too many for a statement's time limit."""
    before: int = 0
    """Rows that earlier runs did."""
    estimate: int | None = None
    speed: MovingRate = attrs.field(factory=MovingRate)
    orders: Orders = Orders(None, None, None)  # noqa: RUF009 - frozen

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        with self.sessions() as session, session.begin():
            yield session


def run_backfill(
    sessions: Callable[[], Session],
    spec: BackfillSpec,
    *,
    by: str,
    progress: Callable[[Progress, int], None] | None = None,
    stop: threading.Event | None = None,
) -> BackfillResult:
    """Run *spec* to its end, from where the last run left it.

    It takes the backfill by a lease; each batch is one transaction of a fresh session
    of *sessions*, and commits the rows together with the place reached. It looks at
    neither migrations nor the environment: the caller has.

    :param by: who runs it, for those who look at the ledger.
    :param progress: called after each batch with how far it is and the rows failed.
    :param stop: when set, the run ends after its batch, and the backfill is ``paused``.
    :raises BackfillFailedError: a batch failed, or rows are still left after the last
     pass; the status is ``failed`` then.
    :raises BackfillLostError: another run took it over.
    """
    target = target_of(spec)
    with sessions() as session, session.begin():
        ledger.register(session, spec, str(target.table))
        remain = target.remain_sql(session.get_bind().dialect)
        checksum = backfill_checksum(spec, target)
        hold = ledger.claim(session, spec.name, by, checksum, remain)
    run = _Run(
        spec,
        target,
        sessions,
        by,
        hold,
        stop or threading.Event(),
        progress or (lambda _progress, _failed: None),
        hold.cursor,
        hold.pass_number,
    )
    try:
        _look_around(run)
        status = _passes(run)
    except BackfillLostError:
        raise
    except Exception as error:
        # Where the server has gone the lease runs out: what is raised is why.
        with suppress(DBAPIError), run.transaction() as session:
            ledger.finish(session, hold, "failed", by=by, error=error)
        if isinstance(error, BackfillFailedError):
            raise
        first = str(error).partition("\n")[0]
        reason = f"{type(error).__name__}: {first}"
        raise BackfillFailedError(spec.name, reason) from error
    return BackfillResult(status, run.rows, run.failed)


def _look_around(run: _Run) -> None:
    """Count what is to do, as far as that is quick, and what was done before."""
    left: int | None
    try:
        with run.transaction() as session:
            if session.get_bind().dialect.name == "postgresql":
                session.execute(text("SET LOCAL statement_timeout = '1s'"))
            some = run.target.keys(None, COUNT_LIMIT + 1).order_by(None).subquery()
            left = session.execute(select(func.count()).select_from(some)).scalar_one()
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        left = None
    if left is not None and left > COUNT_LIMIT:
        left = None
    with run.transaction() as session:
        ledger.note_estimate(session, run.hold, left)
        row = session.get_one(Backfill, run.spec.name)
        run.before, run.failed = row.rows_done, row.failures
        run.orders = Orders(row.requested, row.batch_size, row.rate)
    run.estimate = None if left is None else run.before + left
    run.progress(Progress(run.before, run.estimate), run.failed)


def _passes(run: _Run) -> str:
    while True:
        ended = _walk(run)
        if ended is not None:
            return ended
        with run.transaction() as session:
            avoid = _keys(session, run.spec.name)
            left = run.target.keys(None, 1)
            if avoid:
                left = left.where(~run.target.among(avoid))
            # Without a where all rows match for ever: one pass is all there is.
            more = run.target.where is not None and session.execute(left).first()
            if not more:
                failed = ledger.failures(session, run.spec.name)
                still_open = sum(row.state == "open" for row in failed)
                return _end(session, run, open_failures=still_open)
            if run.pass_number >= PASSES:
                reason = (
                    f"rows are left after {PASSES} passes, so the change leaves rows"
                    " that still match, or somebody goes on writing them"
                )
                raise BackfillFailedError(run.spec.name, reason)
            run.cursor, run.pass_number = None, run.pass_number + 1
            ledger.advance(session, run.hold, cursor=None, pass_number=run.pass_number)


def _end(session: Session, run: _Run, *, open_failures: int) -> str:
    if open_failures:
        name = run.spec.name
        reason = (
            f"{open_failures} rows failed: `sqla-jobs backfill failures {name}` shows"
            f" them; then `sqla-jobs backfill retry-failures {name}` or `accept`"
        )
        raise BackfillFailedError(name, reason)
    ledger.finish(session, run.hold, "done", by=run.by)
    ended = run.before + run.rows
    run.progress(Progress(ended, ended, run.speed.per_second, finished=True), 0)
    return "done"


def _walk(run: _Run) -> str | None:
    """Go through the rows after the cursor; None when there are no more."""
    while True:
        started = time.monotonic()
        if run.stop.is_set() or run.orders.requested is not None:
            status = "cancelled" if run.orders.requested == "cancel" else "paused"
            with run.transaction() as session:
                ledger.finish(session, run.hold, status, by=run.by)
            return status
        batch = _batch(run)
        if batch.last is None:
            return None
        _keep_pace(run, batch.rows, started)
        run.speed.add(batch.rows, time.monotonic() - started)
        run.progress(
            Progress(run.before + run.rows, run.estimate, run.speed.per_second),
            run.failed,
        )


def _batch(run: _Run) -> Batch:
    """Do one batch; try again when another transaction broke it, or with less rows."""
    size = run.orders.batch_size or run.spec.batch_size
    if run.largest is not None:
        size = min(size, run.largest)
    attempt = 1
    while True:
        try:
            with run.transaction() as session:
                # A statement fails as a whole: it has no rows of its own to avoid.
                rows = run.spec.statement is None
                avoid = _keys(session, run.spec.name) if rows else []
                batch = run_batch(
                    session,
                    run.spec,
                    run.target,
                    after=run.cursor,
                    size=size,
                    avoid=avoid,
                )
                on_error = run.spec.on_error
                failed = run.failed + batch.failed
                if isinstance(on_error, Skip) and failed > on_error.max_failures:
                    reason = f"more than {on_error.max_failures} rows failed"
                    raise BackfillFailedError(run.spec.name, reason)
                run.orders = ledger.advance(
                    session,
                    run.hold,
                    rows=batch.rows,
                    cursor=batch.last if batch.last is not None else run.cursor,
                    pass_number=run.pass_number,
                    failures=batch.failed,
                )
        except DBAPIError as error:
            if is_timeout(error) and size > 1:
                # For the rest of the run: the next batch would meet the same limit.
                size = run.largest = size // 2
                continue
            if attempt == TRIES or not is_transient(error):
                raise
            run.stop.wait(0.1 * 2**attempt)
            attempt += 1
            _look_again(run)
            continue
        if batch.last is not None:
            run.cursor = batch.last
        run.rows += batch.rows
        run.failed += batch.failed
        return batch


def _look_again(run: _Run) -> None:
    """Go on from the ledger: the commit that seemed to fail may have arrived."""
    with run.transaction() as session:
        row = session.get_one(Backfill, run.spec.name)
        run.cursor = None if row.cursor is None else load_key(row.cursor)
        run.rows, run.failed = row.rows_done - run.before, row.failures


def _keep_pace(run: _Run, rows: int, started: float) -> None:
    """Wait until the rate allows the next batch; the lease is renewed meanwhile."""
    declared = None if run.spec.rate is None else run.spec.rate.per_second
    rate = run.orders.rate or declared
    if rate is None:
        return
    due = started + rows / rate
    while (wait := due - time.monotonic()) > 0:
        if run.stop.wait(min(wait, BEAT)) or run.orders.requested is not None:
            return
        if due - time.monotonic() > 0:
            with run.transaction() as session:
                run.orders = ledger.advance(
                    session,
                    run.hold,
                    cursor=run.cursor,
                    pass_number=run.pass_number,
                )


def _keys(session: Session, name: str) -> list[Key]:
    return [
        load_key(json.loads(row.key_text)) for row in ledger.failures(session, name)
    ]
