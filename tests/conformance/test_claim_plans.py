"""T13, T16: every statement finds its rows by an index, whatever statistics say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from sqla_jobs.queue.claim import claim, inputs_of, next_due
from sqla_jobs.queue.connections import own_engine
from sqla_jobs.queue.outcome import Interrupted, Retry, Settlement, Snooze, Succeeded
from sqla_jobs.queue.renew import renew
from sqla_jobs.queue.rescue import rescue
from sqla_jobs.queue.retention import Retention, RetentionRules, prune
from sqla_jobs.queue.settle import settle, settle_alone
from tests.support import stock
from tests.support.fleet import DELAY, GRACE, LABEL, TTL, Fleet
from tests.support.plans import Plan, captured, explain
from tests.support.stock import GONE, LIVE, ORPHANS, QUEUE, RUNNING

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.needs("server"),
    pytest.mark.covers("T13", "T16"),
    pytest.mark.timeout(300),
]

BATCH = 100


@pytest.fixture(scope="module")
def stocks() -> Iterator[tuple[ExitStack, dict[tuple[str, str], Engine]]]:
    with ExitStack() as stack:
        yield stack, {}


@pytest.fixture(params=stock.STATISTICS)
def filled(request, databases, stocks) -> Engine:
    """An engine on the stocked database of this state; nothing is ever committed."""
    stack, made = stocks
    key = (databases.server.name, request.param)
    if key not in made:
        engine = create_engine(stack.enter_context(databases.fresh()))
        stack.callback(engine.dispose)
        stock.fill(engine, request.param)
        made[key] = engine
    return made[key]


def plan_of(engine: Engine, act: Callable[[Session], object], *settings: str) -> Plan:
    """Return the plan of the largest statement of *act*, which is rolled back."""
    with Session(engine) as session, captured(engine) as seen:
        act(session)
        session.rollback()
    plans = [explain(engine, statement, *settings) for statement in seen]
    for plan in plans:
        assert "sqla_job" not in plan.scans("Seq Scan"), str(plan)
    return max(plans, key=lambda plan: plan.buffers)


def settlements(engine: Engine, worker_id: str, count: int) -> list[Settlement]:
    """Return outcomes of all kinds for jobs that *worker_id* runs in the stock."""
    outcomes = [
        Succeeded('{"ok": true}'),
        Succeeded(None),
        Retry(timedelta(seconds=9), "ValueError", "no"),
        Snooze(timedelta(seconds=9)),
        Interrupted("shutdown"),
    ]
    with engine.connect() as connection:
        ids = connection.exec_driver_sql(
            "select cast(id as text) from sqla_job"
            " where state = 'running' and worker_id = %s order by key limit %s",
            (worker_id, count),
        ).scalars()
        return [Settlement(i, 1, 1, outcomes[n % 5]) for n, i in enumerate(ids)]


def test_claim_touches_what_it_takes_and_nothing_else(filled):
    """40,000 future rows stand at every priority, before and after the due ones."""
    plan = plan_of(filled, lambda s: claim(s, LIVE, {QUEUE: BATCH}))
    assert plan.rows == BATCH
    assert plan.buffers < 30 * BATCH, str(plan)


def test_claim_of_one_job_and_of_none_is_cheap(filled):
    one = plan_of(filled, lambda s: claim(s, LIVE, {QUEUE: 1}))
    assert one.rows == 1
    assert one.buffers < 60, str(one)

    none = plan_of(filled, lambda s: claim(s, LIVE, {f"q{n}": 5 for n in range(20)}))
    assert none.rows == 0
    assert none.buffers < 20 * 10 * 5, str(none)


def test_claim_of_a_worker_without_a_lease_reads_no_job(filled):
    plan = plan_of(filled, lambda s: claim(s, GONE, {QUEUE: BATCH}))
    assert plan.rows == 0
    assert plan.buffers < 20, str(plan)


@pytest.mark.parametrize("off", ["nestloop", "hashjoin", "mergejoin", "indexscan"])
def test_the_limit_is_exact_under_every_plan(filled, off):
    """T10: the subselect runs once, not once per row that it is compared with."""

    def limited(session: Session) -> None:
        claim(session, LIVE, {QUEUE: 1})

    with Session(filled) as session, captured(filled) as seen:
        limited(session)
        session.rollback()
    plan = explain(filled, seen[0], f"enable_{off} = off")
    assert plan.rows == 1


def test_jobs_of_the_future_at_better_priorities_cost_nothing(engine):
    """T16: 100,000 of them at priority 0 stand in front of what is due at 9."""
    with engine.begin() as connection:
        connection.execute(text(stock.WORKERS))
        stock.add_jobs(connection, "future:", 100_000, at="1 day")
        connection.execute(text("update sqla_job set priority = 0"))
        stock.add_jobs(connection, "due:", BATCH)
        connection.execute(
            text("update sqla_job set priority = 9 where key like 'due:%'")
        )

    plan = plan_of(engine, lambda s: claim(s, LIVE, {QUEUE: 10}))

    assert plan.rows == 10
    assert plan.buffers < 500, str(plan)


def test_next_due_probes_once_per_priority(filled):
    plan = plan_of(filled, lambda s: next_due(s, [QUEUE, "empty"]))
    assert plan.buffers < 2 * 10 * 5, str(plan)


def test_inputs_of_reads_the_bodies_asked_for(filled):
    ids = [s.job_id for s in settlements(filled, LIVE, BATCH)]
    plan = plan_of(filled, lambda s: inputs_of(s, ids))
    assert plan.rows == BATCH
    assert plan.buffers < 5 * BATCH, str(plan)


@pytest.mark.parametrize("count", [1, BATCH])
def test_settle_goes_by_the_primary_key(filled, count):
    batch = settlements(filled, LIVE, count)
    plan = plan_of(filled, lambda s: settle(s, LIVE, batch, worker=LABEL))
    assert plan.rows == count
    assert plan.buffers < 40 + 75 * count, str(plan)


def test_settle_alone_goes_by_the_primary_key(filled):
    (one,) = settlements(filled, LIVE, 1)
    plan = plan_of(filled, lambda s: settle_alone(s, LIVE, one, worker=LABEL))
    assert plan.rows == 1
    assert plan.buffers < 80, str(plan)


def test_rescue_reads_the_running_jobs_only(filled):
    plan = plan_of(filled, lambda s: rescue(s, grace=GRACE, delay=DELAY))
    assert plan.rows == ORPHANS
    assert plan.buffers < 5 * RUNNING + 60 * ORPHANS, str(plan)


def test_renew_looks_at_the_jobs_it_was_given(filled):
    held = [(s.job_id, s.fence) for s in settlements(filled, LIVE, BATCH)]
    plan = plan_of(filled, lambda s: renew(s, LIVE, ttl=TTL, running=held))
    assert plan.buffers < 50 + 6 * BATCH, str(plan)


def test_retention_reads_one_page_of_what_finished(filled):
    rules = RetentionRules(default=Retention(finished=timedelta(days=7)))
    plan = plan_of(filled, lambda s: prune(s, rules, limit=BATCH))
    assert plan.buffers < 10 * BATCH, str(plan)


@pytest.mark.covers("T14")
def test_our_own_connections_never_prepare_a_statement(engine):
    """A plan made when the table was empty would be kept when it is full."""
    own = own_engine(engine).execution_options(isolation_level="AUTOCOMMIT")
    fleet = Fleet(own)
    worker = fleet.start()
    prepared = text(
        "select count(*), min(pg_backend_pid()) from pg_prepared_statements"
    )
    try:
        with own.connect() as connection:
            (_, pid) = connection.execute(prepared).one()
        for _ in range(15):
            fleet.claim(worker)
            fleet.renew(worker)
            fleet.rescue()
        with own.connect() as connection:
            assert connection.execute(prepared).one() == (0, pid)
    finally:
        own.dispose()
