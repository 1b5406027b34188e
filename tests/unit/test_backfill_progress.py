"""The numbers that tell how far a backfill is: never absurd, whatever was counted."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqla_jobs.backfills.progress import ALMOST, MovingRate, Progress

pytestmark = pytest.mark.covers("C84")

rates = st.none() | st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@given(
    done=st.integers(0, 2**62),
    estimate=st.none() | st.integers(0, 2**62),
    rate=rates,
    finished=st.booleans(),
)
def test_percent_and_eta_stay_in_their_range(done, estimate, rate, finished):
    progress = Progress(done, estimate, rate, finished)

    if progress.percent is not None:
        assert 0 <= progress.percent <= 100
        assert (progress.percent == 100) is finished
    if progress.eta is not None:
        assert progress.eta >= timedelta()
    if progress.rows_left is not None:
        assert progress.rows_left >= 0


@pytest.mark.parametrize(
    ("done", "estimate", "percent"),
    [(0, 0, 0.0), (0, 1, 0.0), (1, 1, ALMOST), (500, 1000, 50.0), (7, 5, ALMOST)],
)
def test_before_the_end_percent_follows_the_rows_done(done, estimate, percent):
    assert Progress(done, estimate).percent == percent


@pytest.mark.parametrize("done", [0, 1, 1000])
@pytest.mark.parametrize("estimate", [None, 0, 999, 5000])
def test_the_end_is_a_hundred_percent_of_the_rows_touched(done, estimate):
    """Also when rows were added, removed, or never counted."""
    ended = Progress(done, estimate, finished=True)

    assert (ended.percent, ended.total, ended.rows_left) == (100.0, done, 0)
    assert ended.eta == timedelta()


def test_without_a_total_there_is_a_speed_but_no_end():
    unknown = Progress(10, None, 5.0)

    assert (unknown.percent, unknown.total, unknown.eta) == (None, None, None)


def test_the_rate_of_a_constant_speed_is_exact():
    rate = MovingRate()
    assert rate.per_second is None
    for _ in range(100):
        rate.add(1000, 0.5)
    assert rate.per_second == pytest.approx(2000)
    assert Progress(0, 4000, rate.per_second).eta == timedelta(seconds=2)


def test_the_rate_follows_a_change_of_speed():
    rate = MovingRate(half_life=1)
    rate.add(10_000, 1)
    for _ in range(20):
        rate.add(10, 1)
    assert rate.per_second == pytest.approx(10, rel=0.01)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 10**6))))
def test_no_batch_gives_an_absurd_rate(batches):
    rate = MovingRate()
    for rows, seconds in batches:
        rate.add(rows, seconds)
    assert rate.per_second is None or rate.per_second >= 0
    assert rate.per_second is None or not math.isnan(rate.per_second)
