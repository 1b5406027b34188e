"""The application of examples/weather in one process, and the proof that its demo uses."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from sqlalchemy import delete, select, text, update

from examples.weather.db import create_schema
from examples.weather.demo.verify import expected, verify
from examples.weather.importer import FILES, import_folder
from examples.weather.jobs import FeedUnavailableError, StationDay, ask_feed, jobs
from examples.weather.models import DaySummary, Reading
from sqla_jobs import Worker
from sqla_jobs.models import Job
from tests.support.waiting import wait_until

BAD = ("sf", dt.date(2010, 1, 3))
CRASH = "what the killed worker ran was rescued"


@pytest.fixture
def folder(tmp_path):
    """Two stations, three days of three readings, one of them impossible."""
    days = [f"2010/01/0{day} {hour:02}:00" for day in (1, 2, 3) for hour in (0, 1, 23)]
    seattle = [f"{at},{30 + n}.5" for n, at in enumerate(days)]
    sf = [f"{50 + n},{at}:00" for n, at in enumerate(days)]
    sf[-1] = f"451.0,{days[-1]}:00"
    (tmp_path / FILES["seattle"]).write_text("\n".join(["date,temp", *seattle]))
    (tmp_path / FILES["sf"]).write_text("\n".join(["temp,date", *sf]))
    return tmp_path


@pytest.fixture
def settled(engine, Session, folder):
    """The folder imported twice, and every job settled by a worker in this process."""
    create_schema(engine)
    import_folder(Session, folder)
    import_folder(Session, folder)

    def open_jobs():
        with Session() as session:
            finished = ("succeeded", "dead")
            return session.scalars(
                select(Job.key).where(Job.state.not_in(finished))
            ).all()

    with Worker(jobs, session=Session, queues={"default": 4}):
        wait_until(lambda: not open_jobs(), 30, what="all jobs settled")
    return folder


def failures(engine, folder):
    checks = verify(engine, expected(folder, FILES), BAD, set(), set())
    return {check.says for check in checks if not check.holds}


def test_each_day_is_summarised_once_and_the_impossible_one_is_dead(Session, settled):
    with Session() as session:
        found = {
            (summary.station.name, summary.day): summary
            for summary in session.scalars(select(DaySummary))
        }
        assert len(found) == 5
        first = found["seattle", dt.date(2010, 1, 1)]
        assert (first.readings, float(first.low), float(first.high)) == (3, 30.5, 32.5)
        assert float(first.mean) == 31.5
        dead = session.scalars(select(Job).where(Job.state == "dead")).one()
        assert dead.key == "sf:2010-01-03"
        assert "451.0" in dead.attempts[-1].error
        assert [attempt.number for attempt in dead.attempts] == [1, 2, 3]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (
            update(DaySummary).values(mean=DaySummary.mean + Decimal("0.01")),
            {"every summary is right"},
        ),
        (
            delete(DaySummary).where(DaySummary.day == dt.date(2010, 1, 2)),
            {"every summary is there, once"},
        ),
        (
            delete(Reading).where(Reading.fahrenheit > 400),
            {"every reading of the files was imported"},
        ),
        (
            text("UPDATE sqla_attempt SET error_type = 'ValueError'"),
            {"the spoilt day is the only dead letter"},
        ),
        (
            text("DELETE FROM sqla_job WHERE key = 'sf:2010-01-01'"),
            {"every day has its two jobs, once, and all are settled"},
        ),
    ],
    ids=["wrong", "missing", "unread", "other reason", "lost job"],
)
def test_the_proof_finds(damage, found, engine, settled):
    """What can go wrong is seen: the checks of the demo are able to fail."""
    before = failures(engine, settled)
    assert found & before == set()

    with engine.begin() as connection:
        connection.execute(damage)

    assert failures(engine, settled) - before == found


def test_no_killed_worker_was_seen_here(engine, settled):
    """Without a kill the demo has not shown what it is for, and says so."""
    assert CRASH in failures(engine, settled)


def test_no_feed_is_down_so_often_that_its_job_could_die(monkeypatch):
    """A killed worker may cost one attempt on top of what chance does."""
    monkeypatch.setattr("examples.weather.jobs.time.sleep", lambda seconds: None)

    def failed(day, attempt):
        try:
            ask_feed(day, attempt)
        except FeedUnavailableError:
            return True
        return False

    attempts = jobs["weather.check_feed"].retry.attempts
    year = [dt.date(2010, 1, 1) + dt.timedelta(n) for n in range(365)]
    downs = [
        sum(failed(StationDay(station, day), n) for n in range(1, attempts + 1))
        for station in FILES
        for day in year
    ]

    assert max(downs) < attempts - 1
    assert sum(downs) > 0
