"""Inspection: what it shows, what it never shows, and what it must not cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID

import attrs
import pytest
from sqlalchemy import Engine, event, select, text, update
from sqlalchemy.orm import Session

from sqla_jobs import clock, inspect
from sqla_jobs.declare.registry import Jobs
from sqla_jobs.declare.retry import Retry, exponential
from sqla_jobs.declare.sensitive import Sensitive
from sqla_jobs.declare.tenant import NO_TENANT
from sqla_jobs.exc import InvalidOptionError, JobNotFoundError
from sqla_jobs.inspect import JobFilter
from sqla_jobs.models import Job, JobBody
from sqla_jobs.queue.control import pause_queue
from tests.support.rows import NOW, add_attempt, add_job, add_worker

pytestmark = pytest.mark.conformance

SECOND = timedelta(seconds=1)
LATER = NOW + timedelta(hours=1)
NOBODY = UUID(int=404)

jobs = Jobs()


@attrs.frozen
class Card:
    number: Sensitive[str]
    org: int


charge = jobs.declare(
    "shop.charge",
    input=Card,
    output=Card,
    idempotency_key=lambda i: str(i.org),
    tenant=NO_TENANT,
    retry=Retry(attempts=4, backoff=exponential("2s", cap="5s", jitter=0.5)),
)


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    clock.freeze(LATER)
    yield
    clock.thaw()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def statements(engine: Engine) -> list[str]:
    seen: list[str] = []
    event.listen(
        engine, "before_cursor_execute", lambda c, k, sql, *a: seen.append(sql)
    )
    return seen


# --- one job -------------------------------------------------------------------------


def test_a_trace_tells_every_attempt_with_times_worker_and_error(session):
    job_id = add_job(session, "dead", attempt=2, fence=2, enqueued_by="user:7")
    add_attempt(session, job_id, 1, outcome="lost", error_type=None, error=None)
    add_attempt(session, job_id, 2, outcome="dead")

    trace = inspect.job(session, job_id)

    assert (trace.state, trace.enqueued_by) == ("dead", "user:7")
    first, second = trace.attempts
    assert (first.number, first.outcome, first.error) == (1, "lost", None)
    assert (second.number, second.outcome) == (2, "dead")
    assert (second.error_type, second.error) == ("ValueError", "attempt 2 failed")
    assert (second.worker, second.started_at) == ("host-1:42", NOW)
    assert second.ended_at == NOW + 2 * SECOND


def test_the_attempt_that_runs_is_shown_with_its_worker(session):
    """It has no record yet: the job's row and its worker's tell."""
    worker = add_worker(session, host="host-9", pid=77)
    job_id = add_job(session, "running", attempt=2, fence=2, worker_id=worker)
    add_attempt(session, job_id, 1)

    trace = inspect.job(session, job_id)

    assert [(a.number, a.outcome) for a in trace.attempts] == [
        (1, "failed"),
        (2, "running"),
    ]
    current = trace.attempts[-1]
    assert (current.worker, current.started_at) == ("host-9:77", NOW)
    assert current.ended_at is None


def test_the_attempt_that_succeeded_is_shown_though_it_has_no_record(session):
    job_id = add_job(session, "succeeded", attempt=2, fence=2)
    add_attempt(session, job_id, 1)
    trace = inspect.job(session, job_id)
    last = trace.attempts[-1]
    assert (last.number, last.outcome) == (2, "succeeded")
    assert (last.started_at, last.ended_at) == (NOW, NOW + SECOND)


def test_a_success_that_has_a_record_is_shown_once(session):
    job_id = add_job(session, "succeeded", attempt=1, fence=1)
    add_attempt(session, job_id, 1, outcome="succeeded", error_type=None, error=None)
    assert len(inspect.job(session, job_id).attempts) == 1


@pytest.mark.parametrize(
    ("run_at", "wait"), [(LATER + 90 * SECOND, 90 * SECOND), (NOW, timedelta(0))]
)
def test_a_waiting_job_tells_when_it_runs_next(session, run_at, wait):
    """By the database's clock, and zero when it is due."""
    job_id = add_job(session, "ready", run_at=run_at)
    trace = inspect.job(session, job_id)
    assert (trace.next_run_in, trace.seen_at) == (wait, LATER)


def test_a_finished_job_has_no_next_run(session):
    trace = inspect.job(session, add_job(session, "dead"), registry=jobs)
    assert trace.next_run_in is None
    assert trace.retry_delays == ()


def test_the_declaration_tells_how_long_the_retries_will_wait(session):
    running = add_job(session, "running", name="shop.charge", attempt=1, max_attempts=4)
    ready = add_job(session, name="shop.charge", attempt=2, max_attempts=4)

    trace = inspect.job(session, running, registry=jobs)
    assert list(trace.retry_delays) == [2 * SECOND, 4 * SECOND, 5 * SECOND]
    trace = inspect.job(session, ready, registry=charge)
    assert list(trace.retry_delays) == [5 * SECOND]


def test_sensitive_fields_are_masked_in_input_and_output(session):
    secret = {"number": "4111-1111", "org": 1}
    job_id = add_job(
        session, "succeeded", name="shop.charge", input=secret, output=secret
    )

    trace = inspect.job(session, job_id, registry=jobs)

    assert trace.input == {"number": "***", "org": 1}
    assert trace.output == {"number": "***", "org": 1}
    assert "4111" not in json.dumps(trace.as_dict())


@pytest.mark.parametrize("registry", [None, Jobs(), charge])
def test_payloads_are_hidden_when_nobody_knows_what_is_sensitive(
    engine, session, registry
):
    job_id = add_job(
        session, "succeeded", name="shop.gone", input={"pin": 1}, output={"pin": 1}
    )
    seen = statements(engine)

    trace = inspect.job(session, job_id, registry=registry)

    assert (trace.input, trace.output) == (None, None)
    assert trace.input_hidden
    assert trace.output_hidden
    assert not any("sqla_job_body" in sql for sql in seen)


def test_a_payload_of_another_shape_breaks_nothing(session):
    """An older version's row, or one written by hand."""
    for odd in ([1, "4111"], "text", None, {"org": {"number": 3}}):
        job_id = add_job(session, name="shop.charge")
        session.execute(
            update(JobBody).where(JobBody.job_id == job_id).values(input=odd)
        )
        trace = inspect.job(session, job_id, registry=jobs)
        json.dumps(trace.as_dict())


def test_integers_beyond_a_double_are_exact(session):
    big = 2**63 + 1
    job_id = add_job(session, name="shop.charge", input={"number": "x", "org": big})
    trace = inspect.job(session, job_id, registry=jobs)
    assert str(big) in json.dumps(trace.as_dict())


def test_an_unknown_job_is_an_error(session):
    with pytest.raises(JobNotFoundError):
        inspect.job(session, NOBODY)


# --- lists ---------------------------------------------------------------------------


def test_pages_show_every_job_once_the_newest_first(session):
    ids = [add_job(session) for _ in range(7)]

    pages = []
    after = None
    while True:
        page = inspect.jobs(session, after=after, limit=3)
        pages.append([job.id for job in page.items])
        after = page.next
        if after is None:
            break

    assert pages == [ids[6:3:-1], ids[3:0:-1], ids[0:1]]


def test_a_full_last_page_has_no_next(session):
    for _ in range(3):
        add_job(session)
    assert inspect.jobs(session, limit=3).next is None


def test_jobs_that_come_meanwhile_do_not_shift_the_pages(session):
    old = [add_job(session) for _ in range(4)]
    first = inspect.jobs(session, limit=2)
    add_job(session)
    second = inspect.jobs(session, after=first.next, limit=2)
    assert [job.id for job in second.items] == [old[1], old[0]]


@pytest.mark.parametrize(
    "wanted",
    [
        {"state": "dead"},
        {"name": "a.b"},
        {"queue": "billing"},
        {"tenant": "7"},
        {"key": "k:1"},
        {"enqueued_by": "user:1"},
    ],
)
def test_each_filter_is_an_equality(session, wanted):
    for _ in range(3):
        add_job(session)
    state = wanted.get("state", "ready")
    mine = add_job(session, state, **{k: v for k, v in wanted.items() if k != "state"})
    page = inspect.jobs(session, filters=JobFilter(**wanted))
    assert [job.id for job in page.items] == [mine]


def test_the_empty_tenant_is_no_tenant(session):
    mine = add_job(session, tenant="")
    add_job(session, tenant="7")
    page = inspect.jobs(session, filters=JobFilter(tenant=""))
    assert [(job.id, job.tenant) for job in page.items] == [(mine, None)]


@pytest.mark.parametrize("char", ["%", "_", "\\", "'", "/"])
def test_a_search_matches_literally(session, char):
    """LIKE's own characters are characters."""
    add_job(session, key="sale:10x")
    mine = add_job(session, key=f"sale:10{char}")
    page = inspect.jobs(session, filters=JobFilter(search=f"10{char}"))
    assert [job.id for job in page.items] == [mine]


def test_a_search_looks_into_names_and_keys(session):
    by_name = add_job(session, name="mail.welcome", key="u1")
    by_key = add_job(session, name="x", key="welcome:2")
    add_job(session)
    page = inspect.jobs(session, filters=JobFilter(search="welcome"))
    assert [job.id for job in page.items] == [by_key, by_name]


def test_an_unknown_state_is_refused():
    with pytest.raises(ValueError, match="done"):
        JobFilter(state="done")


@pytest.mark.parametrize("bad", ["7", "x", ""])
def test_a_place_that_is_none_is_refused(session, bad):
    with pytest.raises(InvalidOptionError):
        inspect.jobs(session, after=bad)
    with pytest.raises(InvalidOptionError):
        inspect.dead_letters(session, after=bad)
    with pytest.raises(InvalidOptionError):
        inspect.dead_letters(session, after=f"2026-01-01T00:00:00/{NOBODY}")


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_page_is_bounded(session, limit):
    with pytest.raises(InvalidOptionError):
        inspect.jobs(session, limit=limit)


@pytest.mark.covers("C103")
def test_a_list_of_large_jobs_does_not_load_their_payloads(engine, session):
    """What a page costs does not depend on what the jobs were given."""
    for _ in range(5):
        add_job(session, "dead", input="x" * 1_000_000, output={"y": 1})
    session.flush()
    seen = statements(engine)
    inspect.jobs(session)
    inspect.dead_letters(session)
    inspect.queues(session)
    inspect.workers(session)
    assert seen
    assert not [s for s in seen if "sqla_job_body" in s or "sqla_job_output" in s]


def test_dead_letters_come_with_the_last_error_the_latest_death_first(session):
    add_job(session, "cancelled")
    first = add_job(session, "dead", finished_at=NOW + 9 * SECOND)
    add_attempt(session, first, 1)
    add_attempt(session, first, 2, error="E" * 9000 + "\nValueError: 7")
    second = add_job(session, "dead", finished_at=NOW + 5 * SECOND)

    page = inspect.dead_letters(session)

    assert [letter.id for letter in page.items] == [first, second]
    shown = page.items[0].error
    assert shown is not None
    assert (len(shown), shown[-15:]) == (500, "E\nValueError: 7")
    assert page.items[0].error_type == "ValueError"
    assert (page.items[1].error_type, page.items[1].error) == (None, None)


def test_dead_letters_page_by_the_time_of_death(session):
    """Also when many died in one instant."""
    ids = [
        add_job(session, "dead", finished_at=NOW + (i // 3) * SECOND, queue="q")
        for i in range(7)
    ]
    add_job(session, "dead", queue="other")
    seen, after = [], None
    while True:
        page = inspect.dead_letters(
            session, filters=JobFilter(queue="q"), after=after, limit=2
        )
        seen += [letter.id for letter in page.items]
        after = page.next
        if after is None:
            break
    assert seen == ids[::-1]


# --- queues --------------------------------------------------------------------------


def test_a_queue_tells_depth_age_and_what_it_holds(session):
    add_job(session, "ready", queue="a", run_at=LATER - 90 * SECOND, priority=9)
    add_job(session, "waiting", queue="a", run_at=LATER - 30 * SECOND, priority=0)
    add_job(session, "ready", queue="a", run_at=LATER + SECOND)
    add_job(session, "ready", queue="a", run_at=LATER - 5 * SECOND, lane="L")
    for state in ("running", "dead", "dead", "succeeded", "cancelled"):
        add_job(session, state, queue="a")

    [stats] = inspect.queues(session)

    assert attrs.asdict(stats) == {
        "name": "a",
        "depth": 4,
        "ready": 3,
        "running": 1,
        "dead": 2,
        "oldest_ready_age": 90 * SECOND,
        "paused_at": None,
        "workers": 0,
    }


def test_a_queue_whose_jobs_come_later_has_no_age(session):
    add_job(session, queue="a", run_at=LATER + SECOND)
    [stats] = inspect.queues(session)
    assert (stats.depth, stats.ready, stats.oldest_ready_age) == (1, 0, None)


def test_queues_are_found_wherever_they_are_used(session):
    add_job(session, queue="waiting")
    add_job(session, queue="capped", lane="L")
    add_job(session, "running", queue="running")
    add_job(session, "dead", queue="dead")
    add_job(session, "succeeded", queue="history")
    pause_queue(session, "paused")
    add_worker(session, queues={"served": 1}, lease_until=LATER + SECOND)
    add_worker(session, queues={"gone": 1}, lease_until=LATER)

    found = inspect.queues(session, known=["declared"])

    names = ["capped", "dead", "declared", "paused", "running", "served", "waiting"]
    assert [stats.name for stats in found] == names
    by_name = {stats.name: stats for stats in found}
    assert by_name["paused"].paused_at == LATER
    assert by_name["served"].workers == 1
    assert by_name["declared"].depth == 0


def test_an_empty_database_has_no_queues(session):
    assert inspect.queues(session) == []


MANY = text(
    """
    INSERT INTO sqla_job (id, tenant, name, queue, key, state, priority, run_at,
                          attempt, max_attempts, created_at, finished_at)
    SELECT gen_random_uuid(), '', 'n', :queue, :queue || :state || i, :state, 5,
           timestamptz '2026-11-30 11:00+00' + i * interval '1 ms', 0, 3, now(),
           CASE WHEN :state IN ('dead', 'succeeded') THEN now() END
    FROM generate_series(1, :count) AS i
    """
)


@pytest.mark.needs("server")
def test_counts_are_bounded_and_a_zero_is_a_zero(session):
    """A queue is not hidden behind ten thousand dead letters of another."""
    for queue, state, count in (
        ("a", "ready", 10_050),
        ("a", "dead", 10_050),
        ("b", "ready", 3),
        ("b", "dead", 2),
    ):
        session.execute(MANY, {"queue": queue, "state": state, "count": count})

    a, b = inspect.queues(session)

    assert (a.depth, a.ready, a.dead) == (10_001, 10_001, 10_001)
    assert (b.depth, b.ready, b.dead) == (3, 3, 2)


# --- workers -------------------------------------------------------------------------


def test_workers_tell_their_lease_and_what_they_run(session):
    alive = add_worker(
        session, lease_until=LATER + 20 * SECOND, queues={"a": 3}, started_at=NOW
    )
    dead = add_worker(session, lease_until=LATER - 5 * SECOND)
    second = add_job(session, "running", worker_id=alive, attempted_at=NOW + 2 * SECOND)
    first = add_job(session, "running", worker_id=alive, attempted_at=NOW + SECOND)

    newest, oldest = inspect.workers(session)

    assert (newest.id, newest.alive, newest.lease_left) == (alive, True, 20 * SECOND)
    assert (newest.queues, newest.running) == ({"a": 3}, 2)
    assert [job.id for job in newest.jobs] == [first, second]
    assert (oldest.id, oldest.alive, oldest.lease_left) == (dead, False, -5 * SECOND)
    assert (oldest.running, list(oldest.jobs)) == (0, [])


# --- all of them ---------------------------------------------------------------------


def search(session: Session) -> object:
    return inspect.jobs(session, filters=JobFilter(search="x"))


def trace(session: Session) -> object:
    some = session.scalars(select(Job.id).limit(1)).one()
    return inspect.job(session, some, registry=jobs)


LOOKS: list[Callable[[Session], object]] = [
    inspect.jobs,
    search,
    inspect.dead_letters,
    inspect.queues,
    inspect.workers,
    trace,
]


@pytest.mark.needs("skip_locked")
@pytest.mark.parametrize("look", LOOKS)
def test_a_look_waits_for_nobody_and_works_read_only(engine, second_engine, look):
    """As on a replica: no lock, no temporary table, no write."""
    with Session(engine) as setup, setup.begin():
        add_job(setup, "dead", name="shop.charge")
        add_job(setup, "running")
        add_job(setup)
        add_worker(setup)
    read_only = engine.execution_options(postgresql_readonly=True)
    with second_engine.connect() as holder, Session(read_only) as session:
        holder.execute(text("UPDATE sqla_job SET priority = 1"))
        holder.execute(text("UPDATE sqla_worker SET pid = 1"))
        session.execute(text("SET LOCAL lock_timeout = '1ms'"))
        look(session)


@pytest.mark.parametrize("look", LOOKS)
def test_every_result_is_json(session, look):
    add_job(session, "dead", name="shop.charge")
    add_worker(session, lease_until=LATER + SECOND)
    result = look(session)
    results = result if isinstance(result, list) else [result]
    assert results
    for each in results:
        assert json.loads(json.dumps(each.as_dict())) == each.as_dict()


@pytest.mark.needs("server")
def test_no_look_reads_a_whole_table_of_jobs(engine, session):
    """With a long history and a backlog, each statement goes through an index."""
    for state, count in (("succeeded", 40_000), ("ready", 5_000), ("dead", 50)):
        session.execute(MANY, {"queue": "a", "state": state, "count": count})
    session.execute(text("ANALYZE sqla_job"))
    plans: list[str] = []

    def explain(conn, cursor, sql, parameters, *rest):
        if sql.lstrip().startswith(("SELECT", "WITH")):
            cursor.execute("EXPLAIN " + sql, parameters)
            plans.append("\n".join(row[0] for row in cursor.fetchall()))

    event.listen(engine, "before_cursor_execute", explain)
    inspect.jobs(session)
    inspect.dead_letters(session)
    inspect.queues(session)
    inspect.workers(session)
    event.remove(engine, "before_cursor_execute", explain)

    assert len(plans) >= 8
    assert not [plan for plan in plans if "Seq Scan on sqla_job" in plan]
