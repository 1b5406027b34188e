"""Writers beside a run: nothing of theirs is lost, and no row is stepped over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, insert, select, text, update

from sqla_jobs import Jobs, Skip, Stop, backfills
from tests.backfills.tables import Line, Price
from tests.support.plans import captured, explain
from tests.support.waiting import wait_for_lock

pytestmark = [pytest.mark.each_kind, pytest.mark.needs("skip_locked")]

OPEN = Price.cents.is_(None)


def by_function():
    def fill(session, rows):
        for row in rows:
            row.cents = row.amount * 100

    options = {"after": "b", "rows": select(Price).where(OPEN), "batch_size": 10}
    return Jobs().backfill("cents", **options)(fill)


def by_statement():
    statement = update(Price).where(OPEN).values(cents=Price.amount * 100)
    return Jobs().backfill_statement(
        "cents", after="b", statement=statement, batch_size=10
    )


@pytest.mark.parametrize("declare", [by_function, by_statement])
def test_a_row_that_somebody_writes_is_waited_for_and_read_anew(
    declare, Session, engine, prices
):
    """Read without its lock, the amount of before would be written; stepped over, the
    row would stay without cents."""
    with ThreadPoolExecutor(1) as pool, engine.connect() as writer:
        writer.execute(update(Price).where(Price.id == 5).values(amount=1000))
        run = pool.submit(backfills.run_backfill, Session, declare(), by="me")
        wait_for_lock(engine)
        writer.commit()
        assert run.result(30).rows == 55

    with Session() as session:
        assert session.get_one(Price, 5).cents == 100_000
        right = select(func.count()).where(Price.cents == Price.amount * 100)
        assert session.scalar(right) == 55


def test_a_composite_key_is_one_range_of_its_index(Session, engine, tables):
    rows = [
        {"basket": f"b{b:03}", "number": n, "amount": n}
        for b in range(100)
        for n in range(100)
    ]
    with Session.begin() as session:
        session.execute(insert(Line), rows)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE line"))
    lines = select(Line).where(Line.cents.is_(None))

    def fill(session, rows):
        for row in rows:
            row.cents = 1

    spec = Jobs().backfill("lines", after="b", rows=lines, batch_size=1000)(fill)
    with captured(engine) as statements:
        backfills.run_backfill(Session, spec, by="me")
    # The last one begins where all rows have been seen.
    batches = [s for s in statements if "FOR UPDATE" in str(s)]
    plan = str(explain(engine, batches[-1]))
    assert "Index Cond" in plan
    assert "Seq Scan" not in plan


@pytest.mark.covers("C84")
@pytest.mark.parametrize("on_error", [Stop(), Skip()])
def test_a_statement_that_takes_too_long_is_tried_with_less(on_error, Session, prices):
    """No row is to blame, so none is skipped; the limit is the server's own."""
    sizes = []

    def fill(session, rows):
        sizes.append(len(rows))
        session.execute(text("SET LOCAL statement_timeout = '300ms'"))
        session.execute(text("SELECT pg_sleep(:s)"), {"s": 30 if len(rows) > 6 else 0})
        session.execute(text("SET LOCAL statement_timeout = 0"))
        for row in rows:
            row.cents = row.amount * 100

    spec = Jobs().backfill(
        "cents", after="b", rows=select(Price).where(OPEN), on_error=on_error
    )(fill)
    result = backfills.run_backfill(Session, spec, by="me")
    assert (result.status, result.rows, result.failed) == ("done", 55, 0)
    assert max(sizes) == 55
    assert max(sizes[len(sizes) // 2 :]) <= 6


def test_a_frozen_run_cannot_keep_its_rows(Session, prices):
    """The server ends a transaction that idles, however the process came to a stop."""
    limits = set()

    def fill(session, rows):
        for name in ("idle_in_transaction_session_timeout", "lock_timeout"):
            limits.add(session.scalar(text("SELECT current_setting(:n)"), {"n": name}))
        for row in rows:
            row.cents = 0

    spec = Jobs().backfill("cents", after="b", rows=select(Price).where(OPEN))(fill)
    assert backfills.run_backfill(Session, spec, by="me").rows == 55
    assert limits == {"1min", "30s"}
    with Session() as session:
        assert session.scalar(text("SHOW lock_timeout")) == "0"
