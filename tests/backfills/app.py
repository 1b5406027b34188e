"""A process that runs a backfill, and waits in its batches where a test says so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sqlalchemy import create_engine, select
from sqlalchemy.orm import sessionmaker

from sqla_jobs import Jobs, JobSession
from sqla_jobs.backfills import run_backfill
from sqla_jobs.exc import BackfillLostError
from tests.backfills.tables import Price
from tests.support.waiting import wait_until

jobs = Jobs()
GO = Path(os.environ.get("GO", "/nowhere"))
"""A file: from its fourth batch on the run waits until it is there."""


@jobs.backfill(
    "cents",
    after="27c6",
    rows=select(Price).where(Price.cents.is_(None)),
    batch_size=10,
)
def cents(session, rows):
    for row in rows:
        row.cents = row.amount * 100
        row.changes += 1
    session.flush()
    print(f"batch {rows[0].id}", flush=True)
    if rows[0].id >= 30 and os.environ.get("GO"):
        wait_until(GO.exists, timeout=60)


if __name__ == "__main__":
    engine = create_engine(os.environ["SQLA_JOBS_DATABASE_URL"])
    try:
        result = run_backfill(
            sessionmaker(engine, class_=JobSession), cents, by=sys.argv[1]
        )
    except BackfillLostError:
        print("lost", flush=True)
    else:
        print(result.status, flush=True)
