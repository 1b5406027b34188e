"""Stored inputs that this code cannot read: one job's end, and nobody else's."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import text

from tests.worker import app

pytestmark = pytest.mark.each_kind

# What another version of the input's class, or a hand, may have written.
UNREADABLE = {
    "a field that is missing": {"seconds": 0.0},
    "another type": {"name": 7, "seconds": 0.0},
    "another shape": ["name", "seconds"],
    "null": None,
    "a text": "name",
    "wrong far inside": {"name": [[[[["deep"]]]]], "seconds": {"a": {}}},
}
READABLE = {
    "a field too many": {"name": "readable", "seconds": 0.0, "colour": "red"},
    "a field with a default left out": {"name": "readable"},
}


def rewrite(queue, job_id, stored: object) -> None:
    statement = "update sqla_job_body set input = :input where job_id = :id"
    if queue.engine.dialect.name == "postgresql":
        statement = statement.replace(":input", "cast(:input as json)")
        statement = statement.replace(":id", "cast(:id as uuid)")
    stored_id = str(job_id)
    if queue.engine.dialect.name == "sqlite":
        stored_id = job_id.hex
    with queue.engine.begin() as connection:
        done = connection.execute(
            text(statement), {"input": json.dumps(stored), "id": stored_id}
        )
        assert done.rowcount == 1


@pytest.mark.covers("C102", "C105", "T23")
@pytest.mark.parametrize("stored", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_c102_an_input_that_cannot_be_read_ends_its_own_job_only(queue, start, stored):
    names = [f"healthy {n}" for n in range(20)]
    queue.add(app.visit, *names[:10])
    (rotten,) = queue.add(app.visit, "rotten")
    queue.add(app.visit, *names[10:])
    rewrite(queue, rotten, stored)

    worker = start()
    queue.wait_for_states(succeeded=20, dead=1)

    assert queue.job(rotten).state == "dead"
    (attempt,) = queue.attempts(rotten)
    assert (attempt.outcome, attempt.error_type) == ("dead", "PayloadError")
    assert "PayloadError: input" in attempt.error.splitlines()[-1]
    assert sorted(name for name, _ in queue.visits()) == sorted(names)
    assert worker.stats.stale == 0


@pytest.mark.covers("C105")
@pytest.mark.parametrize("stored", READABLE.values(), ids=READABLE.keys())
def test_c105_an_input_of_an_older_or_newer_version_is_read(queue, start, stored):
    (job_id,) = queue.add(app.visit, "old")
    rewrite(queue, job_id, stored)

    start()
    queue.wait_for_states(succeeded=1)

    assert queue.visits() == [("readable", 1)]
