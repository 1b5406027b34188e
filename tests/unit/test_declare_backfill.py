"""Declaring backfills: what cannot work is refused where it is written."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from sqla_jobs import Jobs
from sqla_jobs.declare.backfill import Skip, Stop
from sqla_jobs.declare.rate import Rate
from sqla_jobs.exc import DurationError, InvalidOptionError, JobNameTakenError
from sqla_jobs.models import Job

ROWS = select(Job)


def declare(jobs, name="prices", **options):
    given = {"after": "27c6a30d7c24", "rows": ROWS} | options

    @jobs.backfill(name, **given)
    def prices(session, rows):
        raise AssertionError

    return prices


def test_a_declared_backfill_is_in_the_registry():
    jobs = Jobs()

    spec = declare(jobs, environments={"staging"}, rate=Rate(10, per="2s"))

    assert jobs.backfills == {"prices": spec}
    assert spec.rate.per_second == 5
    assert spec.environments == {"staging"}
    assert spec.on_error == Stop()
    assert spec.declared_at.startswith(f"{__name__}:")


def test_a_statement_is_declared_by_a_call():
    jobs = Jobs()
    statement = update(Job).values(priority=5)
    spec = jobs.backfill_statement("prices", after="27c6", statement=statement)
    assert spec.statement is statement
    assert (spec.rows, spec.function) == (None, None)
    assert spec.declared_at.startswith(f"{__name__}:")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("name", " "),
        ("after", ""),
        ("after", None),
        ("version", 0),
        ("batch_size", 0),
        ("batch_size", True),
        ("batch_size", 10**9),
        ("rate", 5),
        ("on_error", "skip"),
        ("environments", "staging"),
        ("environments", set()),
    ],
)
def test_a_bad_option_is_refused_by_name(option, value):
    jobs = Jobs()
    with pytest.raises(InvalidOptionError) as refused:
        declare(jobs, **{option: value})
    assert refused.value.option == option
    assert jobs.backfills == {}


@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_counts_are_whole_numbers_from_one(value):
    with pytest.raises(InvalidOptionError):
        Rate(value, per="1s")
    with pytest.raises(InvalidOptionError):
        Rate(1, per="1s", burst=value)
    with pytest.raises(InvalidOptionError):
        Skip(value)


def test_a_rate_is_per_a_duration():
    assert Rate(3, per="1m").per == timedelta(minutes=1)
    with pytest.raises(DurationError):
        Rate(3, per="0s")


def test_names_are_taken_once_also_over_included_registries():
    ours, theirs = Jobs(), Jobs()
    ours.include(theirs)
    spec = declare(theirs)

    assert ours.backfills == {"prices": spec}
    with pytest.raises(JobNameTakenError):
        declare(ours)
    with pytest.raises(JobNameTakenError):
        declare(theirs)


def test_including_a_taken_name_adds_nothing():
    ours, theirs = Jobs(), Jobs()
    declare(ours)
    declare(theirs, "other")
    declare(theirs)

    with pytest.raises(JobNameTakenError):
        ours.include(theirs)
    assert set(ours.backfills) == {"prices"}
