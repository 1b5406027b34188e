"""The chaos in short, and the proof that its audit would see what goes wrong."""

from __future__ import annotations

import secrets
import threading
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from sqla_jobs import JobSession, Worker, cancel_job
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.models import Job
from sqla_jobs.queue.claim import claim
from sqla_jobs.queue.renew import expire_lease, register_worker
from sqla_jobs.queue.rescue import rescue
from sqla_jobs.testing import drain
from tests.chaos import kinds, one_file, witness
from tests.chaos.audit import RULES, audit, load_journals
from tests.chaos.journal import COMMITTED
from tests.chaos.plan import Plan
from tests.chaos.producer import SHARED
from tests.chaos.scenario import Scenario
from tests.chaos.tables import Order, Request
from tests.support.processes import Processes
from tests.support.server import embedded
from tests.support.waiting import wait_until


@pytest.mark.timeout(150)
def test_nothing_is_lost_or_doubled_while_workers_are_killed_and_frozen(
    engine, processes, tmp_path
):
    """The short form of ``make chaos``: the same actors, a smaller lease, less time."""
    plan = Plan(
        seed=secrets.randbits(32),
        seconds=15.0,
        folder=str(tmp_path),
        producers=2,
        lease_ttl=1.5,
        rescue_grace=0.5,
        rescue_interval=0.5,
        between_faults=2.0,
        backlog=150,
    )
    plan.prepare()
    witness.watch(engine)

    outcome = Scenario(plan, engine, processes).run()

    assert outcome.broken == [], f"seed {plan.seed}, logs in {plan.folder}"
    # It was worth the name: processes died and jobs were rescued, many went through.
    assert outcome.tally.killed["worker"] > 2
    assert outcome.tally.freezes > 2
    assert outcome.attempts["lost"] > 0
    assert outcome.facts["succeeded"] > 100


@pytest.mark.covers("T50")
@pytest.mark.timeout(200)
def test_nothing_is_lost_or_doubled_while_the_server_crashes_and_ends_sessions(
    tmp_path,
):
    """``make chaos ARGS='--restarts 60 --kills 5'`` in short, on a server of its own."""
    plan = Plan(
        seed=secrets.randbits(32),
        seconds=20.0,
        folder=str(tmp_path),
        workers=3,
        producers=2,
        lease_ttl=2.5,
        rescue_grace=0.5,
        rescue_interval=0.5,
        between_faults=4.0,
        between_restarts=6.0,
        between_kills=0.5,
        backlog=150,
    )
    plan.prepare()
    # Durable: what was committed must survive the crash.
    with embedded(durable=True) as server:
        with server.connect() as admin:
            admin.execute("create database chaos")
        engine = create_engine(server.database("chaos"), pool_pre_ping=True)
        witness.create(engine)
        url = engine.url.render_as_string(hide_password=False)
        with Processes({"SQLA_JOBS_DATABASE_URL": url}) as processes:
            outcome = Scenario(plan, engine, processes, server.control).run()
        engine.dispose()

    assert outcome.broken == [], f"seed {plan.seed}, logs in {plan.folder}"
    assert outcome.tally.blows["server restart"] >= 1
    assert outcome.tally.blows["session kill"] > 5
    assert outcome.facts["succeeded"] > 100


@pytest.mark.timeout(200)
def test_nothing_is_lost_or_doubled_on_one_file(tmp_path, processes):
    """``make chaos DB=sqlite`` in short."""
    chaos = one_file.Chaos(tmp_path, 8.0, secrets.randbits(32))
    rules = chaos.run(processes)
    assert {says: broken for says, broken in rules.items() if broken} == {}
    assert chaos.blows.total() >= 1
    assert chaos.facts["succeeded"] > 50


ONE_FILE_DAMAGE = {
    "every job whose commit a producer saw exists": "delete from sqla_job",
    "an order and its job exist together or not at all": "delete from chaos_order",
    "each success has its effect exactly once, and nothing else has one": "insert into"
    " chaos_effect (job_id) select job_id from chaos_effect limit 1",
    "no worker is left with a lease": "update sqla_worker set lease_until = '2999-01-01'",
}


def test_the_audit_of_one_file_sees_what_goes_wrong(tmp_path):
    """Each of its rules is kept by an honest history, and broken by its damage."""

    def chaos(name):
        folder = tmp_path / name
        folder.mkdir()
        made = one_file.Chaos(folder, 0.0, 0)
        sessions = sessionmaker(made.engine, class_=JobSession)
        for key in ("a", "b"):
            with sessions.begin() as session:
                session.add(one_file.Order(key=key))
                session.enqueue(one_file.plain, one_file.Work(key))
        drain(sessions, one_file.jobs)
        (folder / "p.journal").write_text("committed a\ncommitted b\nnever c\n")
        assert not any(made.audit().values())
        return made

    def broken(made):
        return {says for says, found in made.audit().items() if found}

    seen = set()
    for number, (says, damage) in enumerate(ONE_FILE_DAMAGE.items()):
        made = chaos(f"damage{number}")
        with made.engine.begin() as connection:
            assert connection.execute(text(damage)).rowcount > 0
        assert says in broken(made)
        seen.add(says)
    made = chaos("outside")
    (made.folder / "p.journal").write_text("never a\n")
    made.outputs.append("sqlite3.OperationalError: database is locked")
    seen |= broken(made)
    assert seen == made.audit().keys()


@pytest.fixture
def history(engine, async_engine, Session):
    """A small, honest history in which every rule has something to look at."""
    witness.watch(engine)
    specs = {
        "a": kinds.entry,
        "b": kinds.midway,
        "c": kinds.transfer,
        "d": kinds.plain,
        "e": kinds.parent,
        "f": kinds.doomed,
        "g": kinds.entry_async,
    }
    with Session.begin() as session:
        for key, spec in specs.items():
            session.add(Order(name=spec.name, key=key))
            session.enqueue(spec, kinds.Work(key))
        session.add(Request(name=kinds.transfer.name, key=f"{SHARED}1", mode="keep"))
        session.enqueue(kinds.transfer, kinds.Work(f"{SHARED}1"))
        session.add(Order(name=kinds.entry.name, key="h"))
        later = session.enqueue(kinds.entry, kinds.Work("h"), delay="1h").id
    with Session.begin() as session:
        cancel_job(session, later)
    _lose_one(Session)
    with Worker(
        kinds.jobs,
        session=Session,
        async_session=async_sessionmaker(async_engine, class_=AsyncJobSession),
        queues=kinds.QUEUES,
    ):
        _wait_for_all(Session)
        with Session.begin() as session:
            session.enqueue(kinds.entry, kinds.Work("a"), on_duplicate="rerun")
        _wait_for_all(Session)
    return [
        {"what": COMMITTED, "name": spec.name, "key": key}
        for key, spec in specs.items()
    ]


def _lose_one(Session):
    """Let a worker that is no process claim one job, and lose it."""
    lost = str(uuid4())
    with Session.begin() as session:
        register_worker(
            session,
            worker_id=lost,
            host="nowhere",
            pid=1,
            version="0",
            queues={},
            ttl=timedelta(seconds=60),
        )
        assert len(claim(session, lost, {"default": 1})) == 1
        expire_lease(session, lost)
    with Session.begin() as session:
        assert len(rescue(session, grace=timedelta(0), delay=timedelta(0))) == 1


def _wait_for_all(Session):
    def unfinished():
        with Session() as session:
            left = select(func.count()).where(Job.state.in_(("ready", "running")))
            return session.execute(left).scalar_one()

    wait_until(lambda: not unfinished(), 20, what="all settled")


DAMAGE = {
    "every job whose commit a producer saw exists": "delete from sqla_job"
    " where key = 'a'",
    "no job of a rolled-back transaction exists": "update chaos_journal"
    " set what = 'rolled back' where key = 'a'",
    "the library told every producer the truth": "update chaos_journal"
    " set what = 'wrong' where key = 'a'",
    "a business row and its job exist together or not at all": "delete from"
    " chaos_order where key = 'a'",
    "a request that was committed met a job, and a shared job a request": "delete"
    " from chaos_request",
    "every job is settled": "update sqla_job set state = 'ready', finished_at = null"
    " where key = 'a'",
    "every job ended as its kind may": "update sqla_job set cancel_requested_at = null",
    "each success has its effect exactly once, and nothing else has one": "insert into"
    " chaos_effect (job_id, name, part, attempt, fence) select job_id, name, part,"
    " attempt, fence from chaos_effect where part = 'final' limit 1",
    "every commit of an attempt's session was made while it owned its job": "update"
    " chaos_seen set fence = fence + 1 where state = 'running'",
    "the balances count the successes": "update chaos_account set balance = balance + 1"
    " where id = 0",
    "a child exists if and only if its parent has succeeded": "delete from chaos_effect"
    " where name = 'chaos.parent'",
    "what returned a value has it stored, once it succeeded": "delete from"
    " sqla_job_output",
    "a fence never goes back, and grows with every change of ownership": "update"
    " sqla_job set state = 'ready', finished_at = null where key = 'a'",
    "only allowed transitions were made": "update sqla_job set state = 'dead'"
    " where key = 'a'",
    "no attempt was numbered above the limit": "update sqla_job"
    " set attempt = max_attempts + 1 where key = 'f'",
    "a job runs if and only if it has an owner": "update chaos_log set worker_id = null",
    "every claim is accounted for: success, given back, or a row of its history":
    "delete from sqla_attempt where outcome = 'failed'",
    "every attempt of the history was claimed": "update sqla_attempt"
    " set fence = fence + 100",
    "a job that was rescued has the lost attempt in its history": "update sqla_attempt"
    " set outcome = 'failed' where outcome = 'lost'",
    "a rerun, and an operator's retry, is followed by a run or a cancel": "update"
    " sqla_job set state = 'ready', finished_at = null, fence = fence + 1"
    " where key = 'f'",
    "no worker is left with a lease": "update sqla_worker"
    " set lease_until = statement_timestamp() + interval '1 minute'",
}  # fmt: skip
"""For each rule a change after which it does not hold any more."""

OUTSIDE = {
    "no session is left in a transaction",
    "the database met no deadlock",
}
"""Rules about sessions, not rows: broken by the next test."""


def broken(connection):
    return {finding.says for finding in audit(connection) if not finding.holds}


def test_the_audit_sees_what_goes_wrong(engine, history):
    """Every rule of it is kept by an honest history, and broken by its damage."""
    assert DAMAGE.keys() | OUTSIDE == {says for says, _ in RULES}
    with engine.connect() as connection:
        load_journals(connection, history)
        assert broken(connection) == set()
        unseen = []
        for says, damage in DAMAGE.items():
            savepoint = connection.begin_nested()
            assert connection.execute(text(damage)).rowcount > 0, damage
            if says not in broken(connection):
                unseen.append(says)
            savepoint.rollback()
        assert unseen == []


def test_the_audit_sees_deadlocks_and_open_transactions(engine, second_engine):
    witness.watch(engine)
    with second_engine.connect() as left_open, engine.connect() as connection:
        left_open.execute(text("select 1"))
        _deadlock(second_engine)
        load_journals(connection, [])

        assert broken(connection) == OUTSIDE


def _deadlock(engine):
    """Let two transactions wait for each other; the server ends one of them."""
    both_hold_one = threading.Barrier(2)
    ended = []

    def lock(first, second):
        take = text("select pg_advisory_xact_lock(:number)")
        with engine.connect() as connection:
            connection.execute(take, {"number": first})
            both_hold_one.wait()
            try:
                connection.execute(take, {"number": second})
            except DBAPIError as error:
                ended.append(error)

    threads = [
        threading.Thread(target=lock, args=numbers) for numbers in ((1, 2), (2, 1))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 1
