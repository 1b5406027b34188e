"""The page about the command line's JSON names every field that there is."""

from __future__ import annotations

import re

import attrs
import pytest

from sqla_jobs import inspect
from sqla_jobs.backfills import BackfillReport
from sqla_jobs.cli.json import VERSION
from sqla_jobs.cli.steer import Done
from sqla_jobs.inspect import results
from sqla_jobs.states import AttemptOutcome, JobState
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "cli-json.md").read_text("utf-8")
NAMED = set(re.findall(r"`([a-z_]+)`", PAGE))
SHAPES = [
    value
    for value in vars(results).values()
    if isinstance(value, type) and attrs.has(value) and value is not results.Facts
]


@pytest.mark.parametrize(
    "shape", [*SHAPES, Done, BackfillReport], ids=lambda shape: shape.__name__
)
def test_each_field_is_on_the_page(shape):
    assert {field.name for field in attrs.fields(shape)} - NAMED == set()


def test_each_state_and_outcome_is_on_the_page():
    assert {*JobState, *AttemptOutcome} - NAMED == set()


def test_the_version_and_the_limit_are_those_of_the_page():
    assert f'`"version": {VERSION}`' in PAGE
    assert str(inspect.COUNT_LIMIT) in PAGE
