"""A frozen clock is what every statement of the library sees."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sqla_jobs import clock
from sqla_jobs.exc import DurationError
from sqla_jobs.models import Job
from sqla_jobs.testing import Clock, drain
from tests.testing_kit.shop import Work, jobs, visit

pytestmark = pytest.mark.each_kind
NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def test_time_stands_until_it_is_moved(factory):
    with Clock(NEW_YEAR) as clock, factory.begin() as session:
        first = session.enqueue(visit, Work("a"), delay="1h")
        session.write_jobs()
        clock.advance("90m")
        second = session.enqueue(visit, Work("b"))
        session.write_jobs()
        jobs = [session.get_one(Job, each.id) for each in (first, second)]
        assert [j.created_at for j in jobs] == [NEW_YEAR, clock.now]
        assert jobs[0].run_at == NEW_YEAR + timedelta(hours=1)
        clock.move_to(NEW_YEAR - timedelta(days=1))
        assert clock.now == datetime(2029, 12, 31, tzinfo=UTC)


def test_it_starts_at_the_present_and_gives_time_back():
    before = datetime.now(UTC)
    with Clock() as outer:
        assert before <= outer.now <= datetime.now(UTC) + MILLISECOND
        with Clock() as inner:
            inner.advance("1d")
            assert inner.now == outer.now
        assert outer.now <= datetime.now(UTC) + MILLISECOND
    assert clock.frozen_at() is None
    with pytest.raises(RuntimeError, match="with Clock"):
        outer.advance("1s")


def test_only_instants_and_durations_are_taken():
    naive = NEW_YEAR.replace(tzinfo=None)
    with pytest.raises(ValueError, match="no time zone"):
        Clock(naive)
    with Clock() as clock:
        with pytest.raises(ValueError, match="no time zone"):
            clock.move_to(naive)
        with pytest.raises(DurationError):
            clock.advance("-1s")


def test_whatever_the_microseconds_a_job_enqueued_now_is_due_now(factory):
    for micros in (1, 499, 501, 999_999):
        with Clock(NEW_YEAR.replace(microsecond=micros)) as clock:
            assert clock.now.microsecond % 1000 == 0
            with factory.begin() as session:
                session.enqueue(visit, Work(f"{micros}"))
            assert drain(factory, jobs).succeeded == 1
            clock.advance(timedelta(microseconds=1))
            assert clock.now.microsecond % 1000 == 0
