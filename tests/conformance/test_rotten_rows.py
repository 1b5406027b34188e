"""Rows that somebody wrote by hand: the others are shown, and the bad one is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sqla_jobs import inspect
from sqla_jobs.exc import RowUnreadableError
from sqla_jobs.queue.bulk import change_jobs
from sqla_jobs.queue.changes import Change
from sqla_jobs.queue.selection import JobFilter
from tests.support.rows import NOW, add_attempt, add_job, add_worker

pytestmark = [pytest.mark.conformance, pytest.mark.covers("C118")]

SECOND = timedelta(seconds=1)
ROTTEN = {"postgresql": "infinity", "sqlite": "some day"}
"""A time that the database keeps and no driver reads."""


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


@pytest.fixture
def rot(engine: Engine, session: Session) -> Callable[[UUID, str], None]:
    """Write a time that cannot be read into a column of a job."""

    def rot(job_id: UUID, column: str) -> None:
        stored = job_id.hex if engine.dialect.name == "sqlite" else str(job_id)
        session.execute(
            text(f"UPDATE sqla_job SET {column} = :bad WHERE id = :id"),
            {"bad": ROTTEN[engine.dialect.name], "id": stored},
        )

    return rot


@pytest.mark.parametrize("column", ["run_at", "created_at", "finished_at"])
def test_a_row_that_cannot_be_decoded_hides_no_other(session, rot, column):
    ids = [add_job(session, "dead", finished_at=NOW + i * SECOND) for i in range(5)]
    rot(ids[2], column)

    for page in (inspect.jobs(session), inspect.dead_letters(session)):
        assert {job.id for job in page.items} == {*ids} - {ids[2]}
        [bad] = page.unreadable
        assert bad.id == ids[2]
        assert bad.reason
        assert "SELECT" not in bad.reason
        json.dumps(page.as_dict())


@pytest.mark.parametrize("look", [inspect.jobs, inspect.dead_letters])
@pytest.mark.parametrize("place", range(5))
def test_pages_go_on_past_it_wherever_it_stands(session, rot, look, place):
    """Also when it is the last of its page, whose place the next page begins at."""
    ids = [add_job(session, "dead", finished_at=NOW + i * SECOND) for i in range(5)]
    rot(ids[place], "finished_at")
    seen, bad, after = [], [], None
    for _ in range(10):
        page = look(session, after=after, limit=2)
        seen += [job.id for job in page.items]
        bad += [row.id for row in page.unreadable]
        after = page.next
        if after is None:
            break
    assert after is None
    assert sorted(seen) == sorted({*ids} - {ids[place]})
    assert bad == [ids[place]]


def test_groups_are_made_of_the_others(session, rot):
    ids = [add_job(session, "dead") for _ in range(3)]
    rot(ids[1], "finished_at")
    [group] = inspect.dead_groups(session).groups
    assert group.count == 2


def test_one_job_says_that_it_cannot_be_read(session, rot):
    job_id = add_job(session, "dead")
    rot(job_id, "run_at")
    with pytest.raises(RowUnreadableError) as refused:
        inspect.job(session, job_id)
    assert refused.value.job_id == job_id


def test_it_can_be_discarded(session, rot):
    """Whoever finds it can get rid of it without SQL."""
    bad, good = add_job(session, "dead", queue="x"), add_job(session, "dead")
    rot(bad, "run_at")
    assert change_jobs(session, Change.DISCARD, JobFilter(queue="x")).count == 1
    assert [job.id for job in inspect.jobs(session).items] == [good]


def test_odd_texts_are_texts(session):
    """A traceparent that is none, a name that nobody declared, an odd outcome."""
    job_id = add_job(session, "dead", name="?", traceparent="00-zz", enqueued_by="\t")
    add_attempt(session, job_id, 1, outcome="exploded", error_type=None, error=None)
    assert inspect.job(session, job_id).attempts[0].outcome == "exploded"
    assert inspect.jobs(session).items[0].traceparent == "00-zz"


@pytest.mark.parametrize("queues", [[], None, "a", 7, {"a": "many"}])
def test_a_worker_of_another_shape_hides_no_other(session, queues):
    later = NOW + timedelta(days=9999)
    add_worker(session, queues=queues, lease_until=later)
    add_worker(session, queues={"b": 2}, lease_until=later)
    found = [stats.queues for stats in inspect.workers(session)]
    assert sorted(found, key=len) == [{}, {"b": 2}]
    assert [(q.name, q.workers) for q in inspect.queues(session)] == [("b", 1)]
