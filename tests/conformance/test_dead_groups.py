"""What died of what: grouped by name, type and message without its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sqla_jobs import inspect
from sqla_jobs.exc import InvalidOptionError
from sqla_jobs.inspect import JobFilter
from sqla_jobs.inspect.groups import normalised
from tests.support.rows import NOW, add_attempt, add_job

pytestmark = pytest.mark.conformance

SECOND = timedelta(seconds=1)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def died(session, error, *, name="shop.work", kind="ValueError", at=0):
    job_id = add_job(session, "dead", name=name, finished_at=NOW + at * SECOND)
    add_attempt(session, job_id, 1, error="an earlier one", error_type="Other")
    add_attempt(session, job_id, 2, error=error, error_type=kind)
    return job_id


def test_deaths_of_one_cause_are_one_group(session):
    """However the numbers and the frames of their tracebacks differ."""
    first = died(session, "Traceback:\n  line 1\nValueError: order 17 of 3", at=1)
    last = died(session, "Traceback:\n  line 22\nValueError: order 4 of 500", at=9)
    died(session, "ValueError: order 17 of 3", name="shop.other", at=2)
    died(session, "ValueError: order 17 of 3", kind="KeyError", at=3)
    died(session, "ValueError: no order 17", at=4)

    found = inspect.dead_groups(session)

    assert (found.looked_at, found.older, found.more) == (5, False, False)
    largest, *others = found.groups
    assert (largest.name, largest.error_type) == ("shop.work", "ValueError")
    assert largest.message == "ValueError: order # of #"
    assert largest.count == 2
    assert (largest.first_at, largest.last_at) == (NOW + SECOND, NOW + 9 * SECOND)
    assert largest.sample_id == last != first
    assert largest.sample_error == "ValueError: order 4 of 500"
    # Of two of one size, the one with the latest death comes first.
    ends = [(group.count, group.last_at) for group in others]
    assert ends == [(1, NOW + at * SECOND) for at in (4, 3, 2)]


def test_a_death_without_a_record_is_a_group_as_well(session):
    job_id = add_job(session, "dead")
    [group] = inspect.dead_groups(session).groups
    assert (group.error_type, group.message, group.sample_error) == (None, "", None)
    assert group.sample_id == job_id


def test_the_look_is_bounded_and_says_so(session, monkeypatch):
    monkeypatch.setattr("sqla_jobs.inspect.groups.COUNT_LIMIT", 4)
    monkeypatch.setattr("sqla_jobs.inspect.groups.LOOKED_AT", 3)
    for i in range(5):
        died(session, f"cause {'abcde'[i]}", at=i)
    found = inspect.dead_groups(session, limit=2)
    assert (found.looked_at, found.older, found.more) == (3, True, True)
    assert [group.message for group in found.groups] == ["cause e", "cause d"]


def test_the_filter_chooses(session):
    died(session, "boom", name="a")
    died(session, "boom", name="b")
    [group] = inspect.dead_groups(session, filters=JobFilter(name="b")).groups
    assert group.name == "b"


@pytest.mark.parametrize("limit", [0, 1001])
def test_a_limit_that_cannot_be_is_refused(session, limit):
    with pytest.raises(InvalidOptionError):
        inspect.dead_groups(session, limit=limit)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("order 17", "order #"),
        ("took 10.5 s, then 1,000", "took # s, then #"),
        ("object at 0x7fE0a", "object at #"),
        ("01a22ec3-e94e-7577-b0e3-7f4d3d4b5f66 is gone", "# is gone"),
        ("digest deadbeef0123cafe42", "digest #"),
        ("no numbers here", "no numbers here"),
        ("added cafe", "added cafe"),
    ],
)
def test_what_differs_is_left_out(line, kept):
    assert normalised(line) == kept
