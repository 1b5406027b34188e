"""Reads the stations' files: each day in one transaction, with the jobs it asks for.

Run it as often as you like: what is there already is left alone.

    python -m examples.weather.importer [FOLDER]
"""

import csv
import datetime as dt
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import sessionmaker

from examples.weather.db import Session
from examples.weather.jobs import StationDay, check_feed, summarise_day
from examples.weather.models import Reading, Station
from sqla_jobs import JobSession

FILES = {"seattle": "seattle-temps.csv", "sf": "sf-temps.csv"}

PAUSES = (0.2, 0.5, 1, 2, 5, 10)  # Seconds; a restart of the server takes one or two.

Measured = tuple[dt.datetime, Decimal]


def package_data() -> Path:
    """Return the folder with the files that the package ``vega-datasets`` ships.

    The package is found, not imported: that would import pandas.
    """
    spec = find_spec("vega_datasets")
    if spec is None or spec.origin is None:
        msg = "pip install vega-datasets: the readings are in that package"
        raise SystemExit(msg)
    return Path(spec.origin).with_name("_data")


def days(path: Path) -> Iterator[tuple[dt.date, list[Measured]]]:
    """Read a file with the columns *date* and *temp*, day by day."""
    with path.open(newline="") as file:
        measured = (
            (dt.datetime.fromisoformat(row["date"].replace("/", "-")), row["temp"])
            for row in csv.DictReader(file)
        )
        for day, rows in groupby(measured, key=lambda row: row[0].date()):
            yield day, [(taken_at, Decimal(temp)) for taken_at, temp in rows]


def import_day(
    session: JobSession, name: str, day: dt.date, measured: Iterable[Measured]
) -> None:
    """Add one day's readings and enqueue its jobs, in the session's transaction."""
    station = session.scalars(select(Station).filter_by(name=name)).one_or_none()
    if station is None:
        station = Station(name=name)
        session.add(station)
        session.flush()
    first, *_ = measured = list(measured)
    if session.get(Reading, (station.id, first[0])):
        return
    session.add_all(
        Reading(station_id=station.id, taken_at=taken_at, fahrenheit=fahrenheit)
        for taken_at, fahrenheit in measured
    )
    session.enqueue(summarise_day, StationDay(name, day))
    session.enqueue(check_feed, StationDay(name, day))


def import_folder(Session: sessionmaker[JobSession], folder: Path) -> None:  # noqa: N803 - a class
    """Import every station's file in *folder*, one transaction per day."""
    for name, file in FILES.items():
        for day, measured in days(folder / file):
            _surviving(lambda: _in_transaction(Session, name, day, measured))  # noqa: B023 - called at once


def _in_transaction(
    Session: sessionmaker[JobSession],  # noqa: N803 - a class
    name: str,
    day: dt.date,
    measured: Iterable[Measured],
) -> None:
    with Session.begin() as session:
        import_day(session, name, day, measured)


def _surviving(step: Callable[[], None]) -> None:
    """Do *step* again when the database went away: what is there is left alone."""
    for pause in PAUSES:
        try:
            step()
        except OperationalError:
            time.sleep(pause)
        else:
            return
    step()


if __name__ == "__main__":
    import_folder(Session, Path(sys.argv[1]) if sys.argv[1:] else package_data())
