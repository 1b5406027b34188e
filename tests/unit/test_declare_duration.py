"""Durations: what may be written, and that the rest is refused with the field's name."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqla_jobs.declare.duration import MAX_DURATION, parse_duration
from sqla_jobs.declare.signals import Discard, RetryLater, Snooze
from sqla_jobs.exc import DurationError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("30s", timedelta(seconds=30)),
        ("10m", timedelta(minutes=10)),
        ("1h", timedelta(hours=1)),
        ("3d", timedelta(days=3)),
        ("2w", timedelta(weeks=2)),
        ("1.5h", timedelta(minutes=90)),
        ("0.001ms", timedelta(microseconds=1)),
        ("1e-05s", timedelta(microseconds=10)),
        (" 5s ", timedelta(seconds=5)),
        (timedelta(days=1), timedelta(days=1)),
        (MAX_DURATION, MAX_DURATION),
    ],
)
def test_a_duration_is_a_timedelta_or_a_number_with_its_unit(written, meant):
    assert parse_duration(written, field="timeout") == meant


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("0s", "zero"),
        (timedelta(0), "zero"),
        ("0.0000001ms", "below one microsecond"),
        ("-1s", "negative"),
        ("-1e9w", "negative"),
        (timedelta(seconds=-1), "negative"),
        ("nans", "not finite"),
        ("inf", "not finite"),
        ("-Infinitys", "not finite"),
        ("365001d", "longer than"),
        ("9e99w", "longer than"),
        (timedelta.max, "longer than"),
        ("30", "not a number followed by"),
        ("1e999s", "not a number followed by"),
        ("9" * 31 + "s", "not a number followed by"),
        ("30 seconds", "not a number followed by"),
        ("1h30m", "not a number followed by"),
        ("٣s", "not a number followed by"),
        ("", "not a number followed by"),
        (30, "without a unit"),
        (1.5, "without a unit"),
        (float("nan"), "without a unit"),
        (True, "without a unit"),
        (None, "without a unit"),
    ],
)
def test_any_other_duration_is_refused_with_the_name_of_its_field(written, reason):
    with pytest.raises(DurationError) as refused:
        parse_duration(written, field="timeout")
    assert refused.value.field == "timeout"
    assert reason in refused.value.reason


def test_zero_means_now_where_the_field_says_so():
    assert parse_duration("0s", field="delay", zero=True) == timedelta(0)
    assert parse_duration(timedelta(0), field="delay", zero=True) == timedelta(0)
    with pytest.raises(DurationError, match="negative"):
        parse_duration("-0.1s", field="delay", zero=True)


@given(st.text(max_size=12) | st.from_regex(r"[+-]?[0-9.eE+-]{1,9}(ms|[smhdw])"))
def test_whatever_the_text_it_is_a_duration_in_range_or_a_duration_error(text):
    try:
        parsed = parse_duration(text, field="timeout")
    except DurationError:
        return
    assert timedelta(0) < parsed <= MAX_DURATION


def test_the_signals_check_their_delay_where_they_are_raised():
    assert RetryLater("0s").delay == timedelta(0)
    assert Snooze("1m").delay == timedelta(minutes=1)
    with pytest.raises(DurationError, match=r"Snooze\.delay"):
        Snooze("0s")
    with pytest.raises(DurationError, match=r"RetryLater\.delay"):
        RetryLater("soon")


@pytest.mark.parametrize(
    "signal", [RetryLater("3s"), Snooze(timedelta(hours=1)), Discard("too late")]
)
def test_the_signals_pickle_with_their_facts(signal):
    copied = pickle.loads(pickle.dumps(signal))
    assert type(copied) is type(signal)
    assert vars(copied) == vars(signal)
