"""Retry: how long until the next attempt, and when there is none."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqla_jobs.declare.retry import TICK, Retry, constant, exponential
from sqla_jobs.declare.signals import Discard, RetryLater
from sqla_jobs.exc import DurationError, InvalidOptionError

ERROR = ValueError("no")


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


@pytest.mark.covers("C30")
def test_c30_an_exponential_backoff_multiplies_its_first_wait_up_to_the_cap():
    backoff = exponential("2s", cap="10m", jitter=0)
    waits = [backoff.delay(attempt).total_seconds() for attempt in range(1, 12)]
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]


@pytest.mark.covers("C30")
def test_c30_a_constant_backoff_waits_the_same_each_time():
    assert {constant("7s").delay(attempt) for attempt in (1, 2, 50)} == {seconds(7)}


@pytest.mark.covers("C30")
@given(
    attempt=st.integers(1, 10**6),
    jitter=st.floats(0, 1),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_c30_jitter_stays_in_its_range_and_no_wait_is_below_a_tick(
    attempt, jitter, chance
):
    exact = exponential("2s", cap="1h", jitter=0).delay(attempt)
    wait = exponential("2s", cap="1h", jitter=jitter).delay(
        attempt, chance=lambda: chance
    )
    assert max(exact * (1 - jitter) - timedelta(microseconds=1), TICK) <= wait <= exact


@pytest.mark.covers("C30")
@pytest.mark.parametrize("attempt", [0, 1, 63, 64, 10**6, 10**100])
def test_c30_no_attempt_number_overflows_and_none_makes_a_tight_loop(attempt):
    longest = exponential("1ms", cap="365000d", jitter=1.0)
    for chance in (0.0, 0.999999):
        wait = longest.delay(attempt, chance=iter([chance]).__next__)
        assert TICK <= wait <= timedelta(days=365_000)


@pytest.mark.covers("C30")
def test_c30_the_jitter_is_drawn_anew_each_time():
    backoff = exponential("1h", cap="1h", jitter=1.0)
    assert len({backoff.delay(1) for _ in range(20)}) > 1


@pytest.mark.covers("C30")
@pytest.mark.parametrize(
    "options",
    [
        {"first": "0s"},
        {"first": None},
        {"first": "1s", "cap": "0s"},
        {"first": "1s", "cap": None},
    ],
)
def test_c30_a_base_or_cap_of_zero_or_none_is_refused(options):
    with pytest.raises(DurationError):
        exponential(options.pop("first"), **options)


@pytest.mark.covers("C30")
@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan"), float("inf"), "0.2", True])
def test_c30_a_jitter_outside_0_to_1_is_refused(jitter):
    with pytest.raises(InvalidOptionError, match="jitter"):
        exponential("1s", jitter=jitter)


@pytest.mark.covers("C30")
def test_c30_a_cap_below_the_first_wait_is_refused():
    with pytest.raises(InvalidOptionError, match="cap"):
        exponential("10s", cap="1s")


@pytest.mark.covers("C30")
def test_c30_a_retry_later_brings_its_own_wait_where_zero_is_the_next_tick():
    retry = Retry(attempts=3, backoff=constant("1h"))
    assert retry.decide(RetryLater("7s"), 1) == seconds(7)
    assert retry.decide(RetryLater("0s"), 1) == TICK
    assert retry.decide(RetryLater("7s"), 3) is None


@pytest.mark.covers("C31")
@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_c31_a_job_that_always_fails_is_tried_exactly_attempts_times(attempts):
    retry = Retry(attempts=attempts)
    tried = 1
    while retry.decide(ERROR, tried) is not None:
        tried += 1
    assert tried == attempts


@pytest.mark.covers("C31")
@pytest.mark.parametrize("attempts", [0, -1, 1.0, True, None, "3", 10**7])
def test_c31_zero_negative_and_other_attempts_are_refused(attempts):
    with pytest.raises(InvalidOptionError, match="attempts"):
        Retry(attempts=attempts)


def test_the_row_may_allow_more_attempts_than_the_declaration():
    """An operator's retry gives a dead job new attempts."""
    retry = Retry(attempts=2)
    assert retry.decide(ERROR, 2) is None
    assert retry.decide(ERROR, 2, max_attempts=4) is not None
    assert retry.decide(ERROR, 4, max_attempts=4) is None


def test_errors_are_sorted_by_classes():
    retry = Retry(retry_on=(OSError, ValueError), dead_on=FileNotFoundError)
    assert retry.decide(ValueError(), 1) is not None
    assert retry.decide(ConnectionError(), 1) is not None
    assert retry.decide(FileNotFoundError(), 1) is None
    assert retry.decide(KeyError(), 1) is None


def test_errors_are_sorted_by_predicates():
    retry = Retry(
        retry_on=lambda error: isinstance(error, OSError),
        dead_on=lambda error: "permanent" in str(error),
    )
    assert retry.decide(OSError("passing"), 1) is not None
    assert retry.decide(OSError("permanent"), 1) is None
    assert retry.decide(ValueError("passing"), 1) is None


def test_a_discard_is_dead_whatever_is_left():
    assert Retry().decide(Discard("nobody wants it"), 1) is None


def test_every_error_is_retried_by_default_a_system_exit_too():
    assert Retry().decide(SystemExit(1), 1) is not None
    assert Retry(dead_on=SystemExit).decide(SystemExit(1), 1) is None


@pytest.mark.parametrize("option", ["retry_on", "dead_on"])
@pytest.mark.parametrize("raised", [RuntimeError("bug"), SystemExit(3)])
def test_a_predicate_that_raises_is_logged_and_the_attempt_retried(
    option, raised, caplog
):
    def broken(error: Exception) -> bool:
        raise raised

    options: dict[str, Any] = {option: broken}
    with caplog.at_level(logging.ERROR, "sqla_jobs.retry"):
        assert Retry(**options).decide(ERROR, 1) is not None
        assert Retry(attempts=1, **options).decide(ERROR, 1) is None
    (record,) = caplog.records
    assert record.exc_info
    assert record.exc_info[1] is raised


def test_a_predicate_never_sees_what_is_no_exception():
    seen: list[BaseException] = []

    def record(error: Exception) -> bool:
        seen.append(error)
        return True

    Retry(retry_on=record, dead_on=record).decide(SystemExit(1), 1)
    assert seen == []


@pytest.mark.parametrize("option", ["retry_on", "dead_on"])
@pytest.mark.parametrize(
    "errors", [None, "ValueError", int, (ValueError, int), [OSError]]
)
def test_what_names_no_errors_is_refused_where_it_is_written(option, errors):
    with pytest.raises(InvalidOptionError, match=option):
        Retry(**{option: errors})
