"""Retention: what finished long ago goes, with all its rows; nothing else ever does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, event, func, select, text, update
from sqlalchemy.orm import Session

from sqla_jobs import clock
from sqla_jobs.declare.registry import Jobs
from sqla_jobs.declare.tenant import NO_TENANT
from sqla_jobs.models import Attempt, Job, JobBody, JobOutput
from sqla_jobs.queue.retention import Place, Retention, RetentionRules, prune
from tests.support.rows import NOW, add_attempt, add_job

pytestmark = pytest.mark.conformance

DAY = timedelta(days=1)
RULES = RetentionRules()


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    clock.freeze(NOW)
    yield
    clock.thaw()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def finished(session: Session, state: str, age: timedelta, **values: object) -> UUID:
    return add_job(session, state, finished_at=NOW - age, **values)


def left(session: Session) -> set[UUID]:
    return set(session.scalars(select(Job.id)))


def sweep(session: Session, rules: RetentionRules, *, limit: int) -> list[int]:
    """Prune from the start until all was looked at; return the counts."""
    counts: list[int] = []
    after: Place | None = None
    while True:
        pruned = prune(session, rules, after=after, limit=limit)
        counts.append(pruned.count)
        if pruned.next is None:
            return counts
        after = pruned.next


@pytest.mark.parametrize(
    ("state", "days"), [("succeeded", 7), ("cancelled", 7), ("dead", 90)]
)
def test_a_finished_job_goes_when_its_time_is_over(session, state, days):
    kept = finished(session, state, days * DAY)
    finished(session, state, days * DAY + timedelta(seconds=1))

    assert prune(session, RULES).count == 1
    assert left(session) == {kept}


@pytest.mark.parametrize("state", ["ready", "waiting", "running"])
def test_an_unfinished_job_stays_however_old(session, state):
    ancient = NOW - 10_000 * DAY
    kept = add_job(session, state, created_at=ancient, run_at=ancient)
    assert prune(session, RULES).count == 0
    assert left(session) == {kept}


def test_a_job_goes_with_its_input_output_and_attempts(session):
    kept = finished(session, "dead", DAY, output={"a": 1})
    add_attempt(session, kept, 1)
    gone = finished(session, "dead", 91 * DAY, output={"a": 1})
    add_attempt(session, gone, 1)
    add_attempt(session, gone, 2)

    assert prune(session, RULES).count == 1
    for table in (Job, JobBody, JobOutput, Attempt):
        assert session.scalar(select(func.count()).select_from(table)) == 1


def test_the_rules_are_what_the_registry_declares(session):
    jobs = Jobs(retain="1d")
    for name, retain in (("short", "1h"), ("long", "100d"), ("plain", None)):
        jobs.declare(
            name,
            input=int,
            output=int,
            idempotency_key=str,
            tenant=NO_TENANT,
            retain=retain,
        )
    rules = RetentionRules.of(jobs)
    for name, age in (
        ("short", timedelta(hours=1)),
        ("plain", DAY),
        ("long", 100 * DAY),
        ("unknown", DAY),
    ):
        finished(session, "succeeded", age + timedelta(seconds=1), name=name)
    kept = {
        finished(session, "succeeded", timedelta(minutes=59), name="short"),
        finished(session, "succeeded", timedelta(hours=23), name="plain"),
        finished(session, "cancelled", 99 * DAY, name="long"),
        finished(session, "dead", 99 * DAY, name="long"),
        finished(session, "dead", 89 * DAY, name="short"),
        finished(session, "cancelled", timedelta(hours=23), name="unknown"),
    }

    assert prune(session, rules).count == 4
    assert left(session) == kept


def test_rows_that_are_kept_longer_do_not_hide_those_behind_them(session):
    """The look goes on where it stopped, and starts over at the end."""
    kept = {finished(session, "dead", 80 * DAY + i * DAY / 100) for i in range(7)}
    for i in range(3):
        finished(session, "succeeded", 8 * DAY + i * DAY / 100)

    assert sweep(session, RULES, limit=2) == [0, 0, 0, 1, 2, 0]
    assert left(session) == kept


def test_jobs_that_finished_in_the_same_instant_are_all_seen(session):
    for _ in range(7):
        finished(session, "succeeded", 8 * DAY)
    assert sweep(session, RULES, limit=3) == [3, 3, 1]


def test_a_call_removes_at_most_its_limit(session):
    for i in range(5):
        finished(session, "succeeded", 8 * DAY + i * DAY)
    assert prune(session, RULES, limit=3).count == 3
    assert len(left(session)) == 2


def test_what_is_too_young_is_not_even_looked_at(session):
    for _ in range(5):
        finished(session, "succeeded", DAY)
    pruned = prune(session, RULES, limit=2)
    assert (pruned.count, pruned.next) == (0, None)


@pytest.mark.needs("skip_locked")
def test_a_job_that_somebody_holds_is_left_and_not_waited_for(engine, second_engine):
    with Session(engine) as setup, setup.begin():
        held = finished(setup, "dead", 100 * DAY)
        finished(setup, "dead", 99 * DAY)
    with second_engine.connect() as holder, Session(engine) as session:
        holder.execute(update(Job).where(Job.id == held).values(priority=1))

        assert prune(session, RULES).count == 1
        assert left(session) == {held}


def test_a_job_that_was_retried_meanwhile_stays(engine, second_engine):
    """Looked at as dead, retried before the lock: the locked row decides."""
    with Session(engine) as setup, setup.begin():
        job_id = finished(setup, "dead", 100 * DAY)
    ready = {"state": "ready", "finished_at": None}

    meanwhile = [update(Job).where(Job.id == job_id).values(ready)]

    def looked(c: object, k: object, sql: str, *rest: object) -> None:
        if "ORDER BY" in sql and meanwhile:
            with second_engine.begin() as other:
                other.execute(meanwhile.pop())

    event.listen(engine, "after_cursor_execute", looked)
    with Session(engine) as session, session.begin():
        assert prune(session, RULES).count == 0
        assert left(session) == {job_id}
    assert not meanwhile


MANY = text(
    """
    INSERT INTO sqla_job (id, tenant, name, queue, key, state, priority, run_at,
                          attempt, max_attempts, created_at, finished_at)
    SELECT gen_random_uuid(), '', 'n', 'q', i::text, 'dead', 5, now(), 1, 3, now(),
           timestamptz '2026-11-30 12:00+00' - i * interval '10 min'
    FROM generate_series(1, 30000) AS i
    """
)


@pytest.mark.needs("server")
@pytest.mark.covers("T13")
@pytest.mark.parametrize("analysed", [False, True])
def test_a_page_of_a_long_history_is_read_through_an_index(engine, session, analysed):
    session.execute(MANY)
    if analysed:
        session.execute(text("ANALYZE sqla_job"))
    plans: list[str] = []

    def explain(conn, cursor, sql, parameters, *rest):
        if "sqla_" in sql:
            cursor.execute("EXPLAIN " + sql, parameters)
            plans.append("\n".join(row[0] for row in cursor.fetchall()))

    event.listen(engine, "before_cursor_execute", explain)
    place = (NOW - 200 * DAY, str(UUID(int=0)))
    # A thirtieth of this small table would rightly be looked for by reading it all.
    pruned = prune(session, RULES, after=place, limit=100)
    event.remove(engine, "before_cursor_execute", explain)

    assert pruned.count == 100
    assert len(plans) == 6  # the page, its locks, the job and its three children
    assert not [plan for plan in plans if "Seq Scan on sqla_job " in plan]


def test_pruning_belongs_to_the_callers_transaction(session):
    job_id = finished(session, "succeeded", 8 * DAY)
    session.commit()
    assert prune(session, RULES).count == 1
    session.rollback()
    assert left(session) == {job_id}


def test_the_shortest_rule_bounds_the_look():
    rules = RetentionRules(
        default=Retention(finished=5 * DAY, dead=9 * DAY),
        names={"a": Retention(finished=7 * DAY, dead=3 * DAY)},
    )
    assert rules.shortest() == 3 * DAY
    assert rules.expired("a", "dead", 4 * DAY)
    assert not rules.expired("a", "succeeded", 6 * DAY)
    assert rules.expired("b", "cancelled", 6 * DAY)
    assert not rules.expired("b", "dead", 6 * DAY)
