"""A run changes each chosen row once, whatever happens to it."""

from __future__ import annotations

import threading
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import delete, func, insert, select, update

from sqla_jobs import Jobs, backfills, clock
from sqla_jobs.backfills import ledger
from sqla_jobs.declare.backfill import Skip
from sqla_jobs.declare.rate import Rate
from sqla_jobs.exc import (
    BackfillAppliedError,
    BackfillFailedError,
    BackfillLostError,
    BackfillRunningError,
    BackfillStatusError,
    BackfillUnknownError,
    InvalidOptionError,
)
from sqla_jobs.models import Backfill, BackfillEvent
from tests.backfills.app import cents
from tests.backfills.tables import Line, Price, Token

pytestmark = pytest.mark.each_kind

OPEN = select(Price).where(Price.cents.is_(None))


def fill(session, rows):
    for row in rows:
        row.cents = row.amount * 100
        row.changes += 1


def declare(function=fill, rows=OPEN, **options):
    options = {"after": "27c6", "batch_size": 10} | options
    return Jobs().backfill("cents", rows=rows, **options)(function)


def run(Session, spec, **options):
    return backfills.run_backfill(Session, spec, by="me", **options)


def row_of(Session, name="cents"):
    with Session() as session:
        return session.get_one(Backfill, name)


def changed(Session):
    with Session() as session:
        return session.execute(
            select(
                func.count(), func.min(Price.changes), func.max(Price.changes)
            ).where(Price.cents == Price.amount * 100)
        ).one()


def test_each_row_is_changed_once(Session, prices):
    told = []

    result = run(Session, declare(), progress=lambda p, _: told.append(p))

    assert (result.status, result.rows, result.failed) == ("done", 55, 0)
    assert changed(Session) == (55, 1, 1)
    assert [p.rows_done for p in told] == [0, 10, 20, 30, 40, 50, 55, 55]
    assert [p.percent for p in told][-1] == 100
    assert all(p.percent < 100 for p in told[:-1])
    row = row_of(Session)
    assert (row.status, row.rows_done, row.rows_estimate) == ("done", 55, 55)
    assert row.holder is None


def test_a_statement_changes_the_same_rows(Session, prices):
    with Session.begin() as session:
        session.execute(update(Price).where(Price.id < 5).values(cents=-1))
    spec = Jobs().backfill_statement(
        "cents",
        after="27c6",
        batch_size=7,
        statement=update(Price)
        .where(Price.cents.is_(None))
        .values(cents=Price.amount * 100, changes=Price.changes + 1),
    )

    assert run(Session, spec).rows == 50
    assert changed(Session) == (50, 1, 1)


def test_a_statement_may_delete(Session, prices):
    gone = delete(Price).where(Price.amount >= 20)
    spec = Jobs().backfill_statement("old", after="1", statement=gone, batch_size=3)

    assert run(Session, spec).rows == 35
    with Session() as session:
        assert session.scalar(select(func.count(Price.id))) == 20


def test_a_composite_key_is_walked_in_order(Session, tables):
    keys = [(basket, n) for basket in ("a", "b", "c") for n in range(7)]
    with Session.begin() as session:
        session.execute(
            insert(Line), [{"basket": b, "number": n, "amount": n} for b, n in keys]
        )
    seen = []

    def fill_lines(session, rows):
        seen.extend((row.basket, row.number) for row in rows)
        for row in rows:
            row.cents = row.amount

    lines = select(Line).where(Line.cents.is_(None))
    run(Session, declare(fill_lines, lines, batch_size=4))

    assert seen == keys


@pytest.mark.covers("C76")
def test_rows_that_land_behind_the_place_reached_are_found_in_another_pass(
    Session, tables
):
    with Session.begin() as session:
        session.add_all(Token(id=uuid4()) for _ in range(20))
    late = [uuid4() for _ in range(5)]

    def fill_tokens(session, rows):
        for row in rows:
            row.seen = 1
        with_late = session.scalar(select(func.count(Token.id))) > 20
        if not with_late:
            session.add_all(Token(id=key) for key in late)

    tokens = select(Token).where(Token.seen.is_(None))
    result = run(Session, declare(fill_tokens, tokens, batch_size=15))

    assert result.rows == 25
    assert row_of(Session).pass_number <= 3
    with Session() as session:
        assert session.scalar(select(func.sum(Token.seen))) == 25


def test_rows_that_go_on_matching_fail_it_after_three_passes(Session, prices):
    with pytest.raises(BackfillFailedError, match="3 passes"):
        run(Session, declare(lambda session, rows: None))
    row = row_of(Session)
    assert (row.status, row.pass_number) == ("failed", 3)


@pytest.mark.covers("C84")
def test_no_rows_are_done_at_once(Session, tables):
    told = []
    result = run(Session, declare(), progress=lambda p, _: told.append(p))
    assert (result.status, result.rows) == ("done", 0)
    assert [(p.rows_done, p.percent) for p in told] == [(0, 0), (0, 100)]


def test_a_failing_batch_is_rolled_back_and_the_next_run_goes_on(Session, prices):
    def fail(session, rows):
        fill(session, rows)
        session.flush()
        if rows[0].id == 30:
            raise ValueError("no price")

    with pytest.raises(BackfillFailedError, match="ValueError: no price"):
        run(Session, declare(fail))
    assert changed(Session) == (30, 1, 1)
    row = row_of(Session)
    assert (row.status, row.error_type, row.rows_done) == ("failed", "ValueError", 30)

    assert run(Session, declare()).rows == 25
    assert changed(Session) == (55, 1, 1)


def test_skip_records_the_rows_that_fail_and_keeps_it_from_being_done(Session, prices):
    bad = {3, 17, 54}

    def fail(session, rows):
        fill(session, rows)
        if bad & {row.id for row in rows}:
            raise ValueError("no price")

    spec = declare(fail, on_error=Skip(5))
    with pytest.raises(BackfillFailedError, match="3 rows failed"):
        run(Session, spec)
    assert changed(Session) == (52, 1, 1)
    assert row_of(Session).failures == 3

    bad.clear()
    with Session.begin() as session:
        backfills.retry_failures(session, "cents")
    assert run(Session, spec).rows == 3
    assert changed(Session) == (55, 1, 1)
    assert row_of(Session).status == "done"


def test_accepted_failures_stay_as_they_are(Session, prices):
    def fail(session, rows):
        fill(session, rows)
        if any(row.id == 3 for row in rows):
            raise ValueError("no price")

    spec = declare(fail, on_error=Skip())
    with pytest.raises(BackfillFailedError):
        run(Session, spec)
    with Session.begin() as session:
        assert backfills.accept_failures(session, "cents", reason="a test row") == 1

    assert run(Session, spec).status == "done"
    assert changed(Session) == (54, 1, 1)


def test_too_many_failures_stop_it(Session, prices):
    def fail(session, rows):
        raise ValueError("never")

    with pytest.raises(BackfillFailedError, match="more than 4 rows failed"):
        run(Session, declare(fail, on_error=Skip(4)))
    assert changed(Session)[0] == 0


def test_a_pause_is_obeyed_after_the_batch_and_the_run_is_resumed(Session, prices):
    def pause(session, rows):
        fill(session, rows)
        if rows[0].id == 20:
            assert backfills.pause_backfill(session, "cents", by="ops") == "requested"

    assert run(Session, declare(pause)).status == "paused"
    assert changed(Session)[0] == 30
    with Session.begin() as session:
        backfills.resume_backfill(session, "cents")
    assert run(Session, declare()).rows == 25
    with Session() as session:
        kinds = session.scalars(
            select(BackfillEvent.kind).order_by(BackfillEvent.at, BackfillEvent.kind)
        ).all()
    assert set(kinds) == {"started", "pause", "paused", "resume", "done"}


def test_a_cancelled_backfill_runs_again_only_when_it_is_resumed(Session, prices):
    def cancel(session, rows):
        fill(session, rows)
        backfills.cancel_backfill(session, "cents")

    assert run(Session, declare(cancel)).status == "cancelled"
    with pytest.raises(BackfillStatusError, match="backfill resume cents"):
        run(Session, declare())


def test_a_stop_pauses_it_between_batches(Session, prices):
    stop = threading.Event()
    result = run(Session, declare(), stop=stop, progress=lambda p, _: stop.set())
    assert (result.status, result.rows) == ("paused", 0)
    assert row_of(Session).status == "paused"


def test_pace_is_changed_while_it_runs(Session, prices):
    sizes = []

    def measure(session, rows):
        fill(session, rows)
        sizes.append(len(rows))
        if len(sizes) == 1:
            backfills.set_backfill_pace(session, "cents", batch_size=20)

    run(Session, declare(measure, rate=Rate(1000, per="1s")))
    assert sizes == [10, 20, 20, 5]


def test_done_is_refused_and_so_are_two_at_once(Session, prices):
    def again(session, rows):
        fill(session, rows)
        with pytest.raises(BackfillRunningError) as refused:
            ledger.claim(session, "cents", "you", "x")
        assert refused.value.holder == "me"

    run(Session, declare(again))
    with pytest.raises(BackfillAppliedError):
        run(Session, declare())


@pytest.mark.covers("C85")
def test_another_declaration_does_not_go_on_where_this_one_stopped(Session, prices):
    stop = threading.Event()
    stop.set()
    run(Session, declare(), stop=stop)
    second = declare(version=2)
    with pytest.raises(BackfillStatusError, match="--from-start"):
        run(Session, second)
    with Session.begin() as session:
        backfills.resume_backfill(session, "cents", from_start=True)
    assert run(Session, second).status == "done"


def test_a_run_that_was_taken_over_rolls_its_batch_back(Session, prices):
    """The lease ends while the batch is in hand, as after a freeze."""

    def freeze(session, rows):
        fill(session, rows)
        session.execute(
            update(Backfill).values(fence=Backfill.fence + 1, holder=uuid4())
        )

    with pytest.raises(BackfillLostError):
        run(Session, declare(freeze))
    assert changed(Session)[0] == 0
    assert row_of(Session).status == "running"


def test_rows_must_be_those_of_one_class(Session, tables):
    for rows in (
        select(Price.id),
        select(Price, Line),
        select(Price).limit(3),
        select(Price).join(Line, Line.number == Price.id),
    ):
        with pytest.raises(InvalidOptionError):
            run(Session, declare(rows=rows))


def test_what_is_pending_is_told(Session, prices):
    jobs = Jobs()
    jobs.backfill("cents", after="27c6", rows=OPEN)(fill)
    jobs.backfill("other", after="27c6", rows=OPEN)(fill)

    with Session() as session:
        assert [
            (b.name, b.status) for b in backfills.pending_backfills(session, jobs)
        ] == [
            ("cents", "never"),
            ("other", "never"),
        ]
    run(Session, jobs.backfills["cents"])
    with Session.begin() as session:
        [left] = backfills.pending_backfills(session, jobs)
        assert left.name == "other"
        spec = jobs.backfills["other"]
        assert backfills.baseline_backfill(session, spec, reason="new") is True
        assert backfills.baseline_backfill(session, spec, reason="new") is False
        assert backfills.pending_backfills(session, jobs) == []
        with pytest.raises(BackfillUnknownError):
            backfills.pause_backfill(session, "none")


# --- processes that die or freeze ------------------------------------------------------


def _expire(Session):
    with Session.begin() as session:
        past = clock.shifted(timedelta(seconds=-1))
        session.execute(update(Backfill).values(lease_until=past))


def test_a_killed_run_is_taken_over_and_no_row_is_changed_twice(
    Session, prices, processes, tmp_path
):
    first = processes.python(
        "-m", "tests.backfills.app", "first", env={"GO": str(tmp_path / "go")}
    )
    first.wait_for_line("batch 30")
    first.kill()

    with pytest.raises(BackfillRunningError):
        run(Session, cents)
    with Session() as session:
        [report] = backfills.pending_backfills(session, Jobs())
    assert (report.status, report.rows_done) == ("running", 30)
    _expire(Session)
    with Session() as session:
        [report] = backfills.pending_backfills(session, Jobs())
    assert report.status == "stalled"

    assert run(Session, cents).rows == 25
    assert changed(Session) == (55, 1, 1)


# With one writer nobody can take over while its transaction is open.
@pytest.mark.needs("skip_locked")
def test_a_frozen_run_that_comes_back_changes_nothing(
    Session, prices, processes, tmp_path
):
    go = tmp_path / "go"
    with Session.begin() as session:
        session.execute(update(Price).where(Price.id < 30).values(cents=Price.id * 100))
    first = processes.python("-m", "tests.backfills.app", "first", env={"GO": str(go)})
    first.wait_for_line("batch 30")
    first.freeze()
    _expire(Session)
    with Session.begin() as session:
        taken = ledger.claim(session, "cents", "second", row_of(Session).checksum)
    assert taken.fence == 2
    go.touch()
    first.thaw()

    first.wait_for_line("lost")
    assert changed(Session)[0] == 30
    _expire(Session)
    assert run(Session, cents).rows == 25
