"""The application's background jobs: what is done for each imported day."""

import datetime as dt
import hashlib
import time
from decimal import Decimal

import attrs
from sqlalchemy import func, select

from examples.weather.models import DaySummary, Reading, Station
from sqla_jobs import NO_TENANT, JobContext, Jobs, Retry, exponential

jobs = Jobs()

COLDEST, HOTTEST = Decimal(-80), Decimal(140)  # degrees Fahrenheit, ever measured


@attrs.frozen
class StationDay:
    """The input of both jobs: one day of one station."""

    station: str
    day: dt.date

    def __str__(self) -> str:
        return f"{self.station}:{self.day}"


class ImpossibleReadingError(ValueError):
    """A reading that no thermometer on Earth can have shown."""


class FeedUnavailableError(ConnectionError):
    """The station's feed did not answer; it will soon."""


@jobs.job(
    "weather.summarise_day",
    input=StationDay,
    idempotency_key=str,
    tenant=NO_TENANT,
    retry=Retry(attempts=3, backoff=exponential("200ms", cap="2s")),
)
def summarise_day(ctx: JobContext, what: StationDay) -> None:
    """Write the day's summary, in the transaction that completes this job.

    A plain ``add`` is enough: either the summary and the job's end are committed, or
    neither. However often the job was tried or its worker killed, there is one row.
    """
    station = ctx.session.scalars(select(Station).filter_by(name=what.station)).one()
    midnight = dt.datetime.combine(what.day, dt.time())
    count, low, high, mean = ctx.session.execute(
        select(
            func.count(),
            func.min(Reading.fahrenheit),
            func.max(Reading.fahrenheit),
            func.avg(Reading.fahrenheit),
        ).where(
            Reading.station_id == station.id,
            Reading.taken_at >= midnight,
            Reading.taken_at < midnight + dt.timedelta(days=1),
        )
    ).one()
    for value in (low, high):
        if not COLDEST <= value <= HOTTEST:
            msg = f"{what.station} measured {value} °F on {what.day}"
            raise ImpossibleReadingError(msg)
    ctx.session.add(
        DaySummary(
            station=station, day=what.day, readings=count, low=low, high=high, mean=mean
        )
    )


@jobs.job(
    "weather.check_feed",
    input=StationDay,
    idempotency_key=str,
    tenant=NO_TENANT,
    retry=Retry(attempts=6, backoff=exponential("100ms", cap="1s")),
)
def check_feed(ctx: JobContext, what: StationDay) -> None:
    """Ask the station's feed whether the day is complete; try again when it is down."""
    ask_feed(what, ctx.attempt)


def ask_feed(what: StationDay, attempt: int) -> None:
    """Stand in for an HTTP request: takes 60 to 140 ms, and one in eight fails.

    Which ones fail is chance, but the same chance in every run: it depends on the
    station, the day and the number of the attempt alone.
    """
    dice = hashlib.sha256(f"{what}:{attempt}".encode()).digest()
    time.sleep(0.06 + 0.08 * dice[1] / 255)
    if dice[0] < 256 // 8:
        msg = f"the feed of {what.station} did not answer for {what.day}"
        raise FeedUnavailableError(msg)
