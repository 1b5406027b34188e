"""``python -m benchmarks.backfill``: a backfill against the loop one writes by hand.

The hand-written loops do what a careful person's would: keys in order, one transaction
per batch, rows locked, nothing remembered. Contenders alternate in one run, on one
server, with the same batch size.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import time
from collections.abc import Callable, Sequence  # noqa: TC003 - the mapper reads them
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from sqlalchemy import create_engine, delete, func, insert, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import sqla_jobs
from benchmarks.server import database, settings
from sqla_jobs import Jobs, JobSession, backfills
from sqla_jobs.models import Backfill

if TYPE_CHECKING:
    from sqlalchemy import Engine

BATCH = 1000


class Base(DeclarativeBase):
    pass


class Reading(Base):
    __tablename__ = "reading"

    id: Mapped[int] = mapped_column(primary_key=True)
    fahrenheit: Mapped[float]
    celsius: Mapped[float | None]


OPEN = Reading.celsius.is_(None)
STATEMENT = (
    update(Reading).where(OPEN).values(celsius=(Reading.fahrenheit - 32) * 5 / 9)
)


def convert(_session: JobSession, rows: Sequence[Reading]) -> None:
    for row in rows:
        row.celsius = (row.fahrenheit - 32) * 5 / 9


jobs = Jobs()
by_function = jobs.backfill(
    "function", after="x", rows=select(Reading).where(OPEN), batch_size=BATCH
)(convert)
by_statement = jobs.backfill_statement(
    "statement", after="x", statement=STATEMENT, batch_size=BATCH
)


def loop_statement(sessions: sessionmaker[JobSession]) -> None:
    last = 0
    while True:
        with sessions.begin() as session:
            page = select(Reading.id).where(OPEN, Reading.id > last)
            ids = session.scalars(page.order_by(Reading.id).limit(BATCH)).all()
            if not ids:
                return
            span = Reading.id.between(ids[0], ids[-1])
            session.execute(
                STATEMENT.where(span),
                execution_options={"synchronize_session": False},
            )
            last = ids[-1]


def loop_orm(sessions: sessionmaker[JobSession]) -> None:
    last = 0
    while True:
        with sessions.begin() as session:
            page = select(Reading).where(OPEN, Reading.id > last)
            page = page.order_by(Reading.id).limit(BATCH).with_for_update()
            rows = session.scalars(page).all()
            if not rows:
                return
            convert(session, rows)
            last = rows[-1].id


CONTENDERS: dict[str, Callable[[sessionmaker[JobSession]], object]] = {
    "statement, by hand": loop_statement,
    "backfill_statement": lambda s: backfills.run_backfill(s, by_statement, by="bench"),
    "ORM, by hand": loop_orm,
    "backfill": lambda s: backfills.run_backfill(s, by_function, by="bench"),
}


def measure(engine: Engine, contender: str, rows: int) -> float:
    """Return rows per second on a table that was just written and vacuumed."""
    with engine.begin() as connection:
        connection.execute(text("truncate reading"))
        connection.execute(delete(Backfill))
        numbers = select(
            func.generate_series(1, rows).label("id"), func.random() * 100
        ).subquery()
        connection.execute(
            insert(Reading).from_select(["id", "fahrenheit"], select(numbers))
        )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("vacuum analyze reading"))
        connection.execute(text("checkpoint"))
    started = time.perf_counter()
    CONTENDERS[contender](sessionmaker(engine, class_=JobSession))
    spent = time.perf_counter() - started
    with engine.connect() as connection:
        left = connection.scalar(select(func.count()).select_from(Reading).where(OPEN))
    assert left == 0, f"{contender} left {left} rows"
    return rows / spent


def main() -> None:
    """Run all contenders in turn and print medians, ratios and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    memory: dict[str, float] = {}
    with database() as url:
        engine = create_engine(url)
        sqla_jobs.metadata.create_all(engine)
        Base.metadata.create_all(engine)
        for _ in range(args.rounds):
            for name in CONTENDERS:
                found[name].append(measure(engine, name, args.rows))
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                memory.setdefault(name, peak)
        facts = {"python": platform.python_version(), **settings(url)}
        engine.dispose()
    table = Table(title=f"{args.rows:,} rows, batches of {BATCH:,}")
    for column in ("", "rows/s, median", "from", "to", "of by hand", "peak MiB"):
        table.add_column(column, justify="left" if not column else "right")
    middle = {name: statistics.median(speeds) for name, speeds in found.items()}
    names = list(CONTENDERS)
    for index, name in enumerate(names):
        against = names[index - index % 2]
        table.add_row(
            name,
            f"{middle[name]:,.0f}",
            f"{min(found[name]):,.0f}",
            f"{max(found[name]):,.0f}",
            "" if name == against else f"{middle[name] / middle[against]:.2f}",
            f"{memory[name]:.0f}",
        )
    console = Console()
    console.print(table)
    console.print(facts)


if __name__ == "__main__":
    main()
