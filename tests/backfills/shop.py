"""An application with two backfills, as the command line meets it."""

from __future__ import annotations

from sqlalchemy import select, update

from sqla_jobs import Jobs
from sqla_jobs.declare.backfill import Skip
from tests.backfills.tables import Price

jobs = Jobs()

BAD = 10_000
"""Amounts from here on are refused."""


@jobs.backfill(
    "cents",
    after="bbbb",
    rows=select(Price).where(Price.cents.is_(None)),
    batch_size=10,
    on_error=Skip(),
)
def cents(session, rows):
    for row in rows:
        if row.amount >= BAD:
            raise ValueError(f"{row.amount} is too much")
        row.cents = row.amount * 100


jobs.backfill_statement(
    "counted",
    after="aaaa",
    statement=update(Price).where(Price.changes == 0).values(changes=1),
    batch_size=20,
)
