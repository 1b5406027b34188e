"""Enqueuers that meet: one job per key, no deadlock, and the right answer to each."""

from __future__ import annotations

import os
import random
import re
import threading

import pytest
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session as PlainSession

from sqla_jobs import JobSession, enqueue, enqueue_many, write_jobs
from sqla_jobs.models import Job
from tests.support.deadlocks import no_deadlock
from tests.support.enqueuing import Work, bodies, keys, orders, stored, work
from tests.support.fleet import Fleet
from tests.support.gates import Background, stopped
from tests.support.proxy import proxied
from tests.support.shop import Order
from tests.support.waiting import wait_until

COUNT = select(func.count()).select_from(Job)


@pytest.fixture
def wide(make_engine):
    """A pool for many threads."""
    return make_engine(pool_size=40)


def together(*calls):
    """Start *calls* in threads at one instant; return their results."""
    barrier = threading.Barrier(len(calls))

    def start(call):
        def run():
            barrier.wait(20)
            return call()

        return Background(run)

    return [background.result(60) for background in [start(call) for call in calls]]


@pytest.mark.covers("T11")
@pytest.mark.parametrize("calls", ["one-call", "many-calls"])
def test_writers_of_the_same_keys_in_opposite_orders_do_not_deadlock(wide, calls):
    """20,000 keys from four writers; what each one asked for stands in its place."""
    everything = [f"k{n:05}" for n in range(20_000)]
    orders_of_keys = [
        everything,
        everything[::-1],
        random.Random(1).sample(everything, len(everything)),
        everything[10_000:] + everything[:10_000],
    ]

    def writer(mine):
        def write():
            with PlainSession(wide) as session, session.begin():
                if calls == "one-call":
                    return enqueue_many(session, work, [Work(k) for k in mine])
                return [enqueue(session, work, Work(k)) for k in mine]

        return write

    with no_deadlock(wide):
        results = together(*(writer(mine) for mine in orders_of_keys))
        with wide.connect() as connection:
            ids = {key: id_ for id_, key in connection.execute(select(Job.id, Job.key))}
    assert len(ids) == 20_000
    created = 0
    for mine, handles in zip(orders_of_keys, results, strict=True):
        assert [(h.key, h.id) for h in handles] == [(k, ids[k]) for k in mine]
        created += sum(h.outcome == "created" for h in handles)
    assert created == 20_000


@pytest.mark.covers("T11")
@pytest.mark.parametrize("mode", ["replace", "rerun"])
def test_writers_that_change_the_same_jobs_in_opposite_orders_do_not_deadlock(
    wide, mode
):
    some = [f"k{n:03}" for n in range(200)]
    with PlainSession(wide) as session, session.begin():
        # Ids in another order than keys: rows are locked by id.
        enqueue_many(
            session, work, [Work(k) for k in random.Random(2).sample(some, 200)]
        )

    def writer(mine, n):
        def write():
            for _ in range(5):
                with PlainSession(wide) as session, session.begin():
                    enqueue_many(
                        session, work, [Work(k, n) for k in mine], on_duplicate=mode
                    )

        return write

    with no_deadlock(wide):
        together(*(writer(some[:: 1 if n % 2 else -1], n) for n in range(6)))


@pytest.mark.covers("T20")
@pytest.mark.parametrize("end", ["rollback", "commit"])
@pytest.mark.parametrize("mode", ["keep", "replace", "rerun"])
def test_a_key_that_an_open_transaction_holds_is_waited_for(
    engine, second_engine, end, mode
):
    """Whatever becomes of it, exactly one job exists and the waiter knows which."""
    first = PlainSession(engine)
    held = enqueue(first, work, Work("k", 1))
    write_jobs(first)

    def second():
        with PlainSession(second_engine) as session, session.begin():
            return enqueue(session, work, Work("k", 2), on_duplicate=mode)

    waiting = stopped(engine, second)
    getattr(first, end)()
    first.close()
    handle = waiting.result()
    assert keys(engine) == ["k"]
    assert bodies(engine) == 1
    job = stored(engine, "k")
    assert handle.id == job.id
    if end == "rollback":
        assert (handle.outcome, job.input["n"]) == ("created", 2)
    else:
        outcome = {"keep": "kept", "replace": "replaced", "rerun": "rerun"}[mode]
        assert (handle.outcome, handle.id) == (outcome, held.id)
        assert job.input["n"] == (1 if mode == "keep" else 2)


@pytest.mark.covers("T21")
def test_an_open_duplicate_does_not_delay_the_claim_of_the_original(
    Session, second_engine
):
    """It locks nothing of the row that it keeps."""
    with Session.begin() as session:
        session.enqueue(work, Work("k"))
    fleet = Fleet(second_engine)
    with Session() as session:
        handle = session.enqueue(work, Work("k"))
        session.write_jobs()
        assert handle.outcome == "kept"
        assert fleet.claim_one(fleet.start()).key == "k"
        session.commit()


@pytest.mark.covers("C14")
def test_many_callers_of_one_key_get_one_job(wide):
    """Each round one of them creates it, and all others are told which one exists."""

    def call(key):
        def run():
            with PlainSession(wide) as session, session.begin():
                handle = enqueue(session, work, Work(key))
            return handle.id, handle.outcome

        return run

    rounds = 15
    for n in range(rounds):
        results = together(*([call(f"k{n}")] * 16))
        assert len({id_ for id_, _ in results}) == 1
        assert sorted(outcome for _, outcome in results) == ["created"] + ["kept"] * 15
    with wide.connect() as connection:
        assert connection.scalar(COUNT) == rounds


@pytest.mark.covers("T28")
def test_enqueues_go_on_while_the_identity_index_is_rebuilt(wide):
    """A targeted ON CONFLICT would find two indexes, and raise UniqueViolation."""
    done = threading.Event()
    rounds = 12

    def rebuild():
        engine = create_engine(wide.url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                for _ in range(rounds):
                    connection.execute(
                        text("REINDEX INDEX CONCURRENTLY sqla_job_identity")
                    )
        finally:
            done.set()
            engine.dispose()

    def enqueuer(seed):
        def run():
            chance = random.Random(seed)
            count = 0
            while not done.is_set():
                some = [Work(f"k{chance.randrange(200)}", count) for _ in range(5)]
                mode = chance.choice(["keep", "replace", "rerun"])
                with PlainSession(wide) as session, session.begin():
                    handles = enqueue_many(session, work, some, on_duplicate=mode)
                assert all(h.outcome for h in handles)
                count += 1
            return count

        return run

    _, *counts = together(rebuild, *(enqueuer(seed) for seed in range(6)))
    assert all(counts)
    with wide.connect() as connection:
        assert connection.scalar(COUNT) == len(set(keys(wide)))
        assert connection.scalar(
            text("SELECT indisvalid FROM pg_index WHERE indexrelid = :i :: regclass"),
            {"i": "sqla_job_identity"},
        )


@pytest.mark.covers("T52")
def test_a_client_that_retries_after_a_lost_commit_has_one_job(pg_url, second_engine):
    """The COMMIT arrives, its answer does not; the whole transaction is done again."""
    with proxied(pg_url) as proxy:
        engine = create_engine(proxy.url)

        def attempt():
            with JobSession(engine) as session:
                session.merge(Order(id=1, org_id=1))
                handle = session.enqueue(work, Work("k"))
                session.commit()
                return handle

        proxy.cut_after(b"COMMIT")
        with pytest.raises(DBAPIError):
            attempt()
        assert proxy.cuts == 1
        wait_until(lambda: keys(second_engine) == ["k"])
        handle = attempt()
        engine.dispose()
    assert handle.outcome == "kept"
    assert (keys(second_engine), orders(second_engine)) == (["k"], [1])


@pytest.mark.covers("T52")
def test_a_client_that_retries_after_a_commit_that_never_arrived_has_one_job(
    engine, second_engine
):
    def attempt(*, lose):
        with JobSession(engine) as session:
            session.merge(Order(id=1, org_id=1))
            handle = session.enqueue(work, Work("k"))
            session.write_jobs()
            if lose:
                pid = session.scalar(text("SELECT pg_backend_pid()"))
                with second_engine.begin() as elsewhere:
                    end = text("SELECT pg_terminate_backend(:pid, 10000)")
                    elsewhere.execute(end, {"pid": pid})
            session.commit()
            return handle

    with pytest.raises(DBAPIError):
        attempt(lose=True)
    assert keys(second_engine) == []
    assert attempt(lose=False).outcome == "created"
    assert (keys(second_engine), orders(second_engine)) == (["k"], [1])


# --- processes -------------------------------------------------------------------------


def produce(start):
    """Commit job after job, and say of each that it is committed."""
    engine = create_engine(os.environ["SQLA_JOBS_DATABASE_URL"])
    with JobSession(engine) as session:
        for n in range(start, start + 100_000):
            session.add(Order(id=n, org_id=1))
            session.enqueue(work, Work(f"{n}"))
            session.commit()
            print(f"committed {n};", flush=True)


@pytest.mark.covers("C08")
def test_a_producer_killed_right_after_its_commit_has_lost_no_job(processes, engine):
    """Twenty times: what it said it committed is there, once, beside its row."""
    for n in range(20):
        child = processes.call(produce, n * 1000)
        child.wait_for_line(r"committed \d+;")
        child.kill()
        # The kill may have cut the last line: only what has its end counts.
        whole = (re.fullmatch(r"committed (\d+);", line) for line in child.lines)
        said = {match[1] for match in whole if match}
        assert said
        # The server may still be at the COMMIT that the producer did not see answered.
        wait_until(lambda: len(keys(engine)) == len(orders(engine)))
        found = keys(engine)
        assert said <= {*found}
        assert len(found) == len({*found}) == bodies(engine)


def enqueue_in_any_order():
    engine = create_engine(os.environ["SQLA_JOBS_DATABASE_URL"])
    with JobSession(engine) as session, session.begin():
        handles = session.enqueue_many(work, [Work(k) for k in {"a", "b", "é" * 300}])
    print("outcomes", sorted({h.outcome for h in handles}), flush=True)


@pytest.mark.covers("C18", "C16")
def test_processes_with_other_hash_seeds_agree_on_the_identity(processes, engine):
    for seed in ("1", "2"):
        child = processes.call(enqueue_in_any_order, env={"PYTHONHASHSEED": seed})
        outcome = "created" if seed == "1" else "kept"
        child.wait_for_line(rf"outcomes \['{outcome}'\]")
        assert child.wait() == 0
    assert len(keys(engine)) == 3
