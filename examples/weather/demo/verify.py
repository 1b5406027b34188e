"""The proof: what is in the database against what is in the files.

None of the application's code is used here: the files are read and the summaries
computed again in another way, and the database is asked in plain SQL.
"""

import csv
import datetime as dt
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from fractions import Fraction
from pathlib import Path
from uuid import UUID

import attrs
from sqlalchemy import (
    Date,
    Engine,
    Integer,
    Numeric,
    String,
    Uuid,
    column,
    text,
)

Key = tuple[str, dt.date]
Summary = tuple[int, Fraction, Fraction, Fraction]  # readings, low, high, mean

SUMMARIES = text(
    """
    SELECT station.name, summary.day, summary.readings, low, high, mean
    FROM weather_day_summary AS summary
    JOIN weather_station AS station ON station.id = summary.station_id
    """
).columns(
    column("name", String),
    column("day", Date),
    column("readings", Integer),
    column("low", Numeric(4, 1)),
    column("high", Numeric(4, 1)),
    column("mean", Numeric(6, 3)),
)
IMPORTED = text("SELECT count(*) FROM weather_reading")
JOBS = text("SELECT name, key, state, count(*) FROM sqla_job GROUP BY 1, 2, 3")
FAILED = text("SELECT job_id FROM sqla_attempt WHERE outcome = 'failed'").columns(
    column("job_id", Uuid)
)
SUCCEEDED = text("SELECT id FROM sqla_job WHERE state = 'succeeded'").columns(
    column("id", Uuid)
)
DEAD = text(
    "SELECT job.id, job.key, attempt.error_type FROM sqla_job AS job"
    " JOIN sqla_attempt AS attempt ON attempt.job_id = job.id"
    " WHERE job.state = 'dead' AND attempt.fence = job.fence"
).columns(column("id", Uuid), column("key", String), column("error_type", String))


@attrs.frozen
class Check:
    """One thing that must hold."""

    says: str
    holds: bool
    detail: str = ""


def expected(folder: Path, files: Mapping[str, str]) -> dict[Key, Summary]:
    """Compute every day's summary from the files."""
    found: dict[Key, list[Fraction]] = {}
    for station, file in files.items():
        with (folder / file).open(newline="") as rows:
            for row in csv.DictReader(rows):
                year, month, day = (int(part) for part in row["date"][:10].split("/"))
                key = (station, dt.date(year, month, day))
                found.setdefault(key, []).append(Fraction(row["temp"]))
    return {
        key: (len(temps), min(temps), max(temps), sum(temps) / Fraction(len(temps)))
        for key, temps in found.items()
    }


def verify(
    engine: Engine,
    summaries: Mapping[Key, Summary],
    bad: Key,
    held: AbstractSet[UUID],
    lost: AbstractSet[UUID],
) -> list[Check]:
    """Check everything the demo promises.

    :param summaries: of the files as they were shipped.
    :param bad: the day that the demo has spoilt.
    :param held: the jobs which the killed worker ran at its end.
    :param lost: the jobs of which an attempt was recorded as lost.
    """
    good = {key: summary for key, summary in summaries.items() if key != bad}
    with engine.connect() as connection:
        rows = connection.execute(SUMMARIES).all()
        readings = connection.scalar(IMPORTED)
        jobs = connection.execute(JOBS).all()
        failed = set(connection.scalars(FAILED))
        succeeded = set(connection.scalars(SUCCEEDED))
        dead = connection.execute(DEAD).all()
    keys = [(name, day) for name, day, *_ in rows]
    wrong = [
        (name, day)
        for name, day, *values in rows
        if (name, day) in good and not _same(good[name, day], values)
    ]
    buried = {job for job, *_ in dead}
    states = {state for _, _, state, _ in jobs}
    wanted = sum(count for count, *_ in summaries.values())
    return [
        Check(
            "every reading of the files was imported",
            readings == wanted,
            f"{readings:,} of {wanted:,}",
        ),
        Check(
            "every day has its two jobs, once, and all are settled",
            sorted((name, key) for name, key, *_ in jobs)
            == sorted(
                (job, f"{station}:{day}")
                for job in ("weather.summarise_day", "weather.check_feed")
                for station, day in summaries
            )
            and states <= {"succeeded", "dead"},
            f"{len(jobs):,} jobs",
        ),
        Check(
            "every summary is there, once",
            sorted(keys) == sorted(good),
            f"{len(keys):,} of {len(good):,}",
        ),
        Check(
            "every summary is right",
            bool(rows) and not wrong,
            f"{len(wrong)} differ from the files" if wrong else "computed again",
        ),
        Check(
            "the spoilt day is the only dead letter",
            [(key, error) for _, key, error in dead]
            == [(f"{bad[0]}:{bad[1]}", "ImpossibleReadingError")],
            ", ".join(key for _, key, _ in dead) or "none",
        ),
        Check(
            "whatever failed and was not spoilt succeeded later",
            bool(failed & succeeded) and failed <= succeeded | buried,
            f"{len(failed & succeeded)} jobs",
        ),
        Check(
            "what the killed worker ran was rescued",
            bool(held) and held <= lost and held <= succeeded | buried,
            f"{len(held & lost)} of {len(held)} jobs",
        ),
    ]


def _same(wanted: Summary, values: list[int]) -> bool:
    count, low, high, mean = wanted
    return (
        (count, low, high) == (values[0], Fraction(values[1]), Fraction(values[2]))
        # Stored with three digits after the point.
        and abs(mean - Fraction(values[3])) <= Fraction(1, 2000)
    )
