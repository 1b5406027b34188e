"""Paging over very many jobs: each exactly once, wherever the pages are cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sqla_jobs import inspect
from sqla_jobs.inspect import JobFilter
from sqla_jobs.queue.bulk import change_jobs
from sqla_jobs.queue.changes import Change

pytestmark = [pytest.mark.conformance, pytest.mark.covers("T65")]

MANY = 100_000
COLUMNS = (
    "id, tenant, name, queue, key, state, priority, run_at, attempt, max_attempts,"
    " created_at, finished_at"
)
INSERT = {
    "postgresql": f"""
        INSERT INTO sqla_job ({COLUMNS})
        SELECT md5(i::text)::uuid, '', 'n', 'q', 'k' || i, 'dead', 5, at, 1, 1, at, at
        FROM generate_series(1, {MANY}) AS i,
             (SELECT timestamptz '2026-11-30 12:00:00+00' AS at) AS s""",
    "sqlite": f"""
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})
        INSERT INTO sqla_job ({COLUMNS})
        SELECT printf('%032x', i * 7919 % 1000003), '', 'n', 'q', 'k' || i, 'dead', 5,
               at, 1, 1, at, at
        FROM n, (SELECT '2026-11-30 12:00:00.000000' AS at) AS s""",
}


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A hundred thousand jobs that came and died in one instant."""
    with Session(engine) as session:
        session.execute(text(INSERT[engine.dialect.name]))
        session.commit()
        yield session


@pytest.mark.parametrize("look", [inspect.jobs, inspect.dead_letters])
def test_jobs_of_one_instant_are_each_shown_once(session, look):
    seen: set[object] = set()
    count, after = 0, None
    while True:
        page = look(session, after=after, limit=1000)
        seen.update(job.id for job in page.items)
        count += len(page.items)
        after = page.next
        if after is None:
            break
    assert (count, len(seen)) == (MANY, MANY)


def test_jobs_of_one_instant_are_each_changed_once(session):
    count, after = 0, None
    while True:
        done = change_jobs(session, Change.RETRY, JobFilter(name="n"), after=after)
        session.commit()
        assert done.left == 0
        count += done.count
        after = done.next
        if after is None:
            break
    assert count == MANY
    assert inspect.count(session, JobFilter(state="dead")) == 0
