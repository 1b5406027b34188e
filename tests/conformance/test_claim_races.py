"""Claims that meet somebody else in the middle of their statement."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import NO_TENANT, Jobs, JobSession
from sqla_jobs.queue.claim import claim, inputs_of
from sqla_jobs.queue.control import cancel_job
from tests.support.fleet import Fleet
from tests.support.gates import BEFORE_CLAIM_LOCKS, gate, stopped
from tests.support.rows import add_job

pytestmark = [pytest.mark.conformance, pytest.mark.needs("skip_locked")]

jobs = Jobs()
index = jobs.declare(
    "shop.index",
    input=dict[str, int],
    output=None,
    idempotency_key=lambda i: "one",
    tenant=NO_TENANT,
)


@pytest.fixture
def fleet(engine) -> Fleet:
    return Fleet(engine)


@pytest.fixture
def others(second_engine) -> sessionmaker[JobSession]:
    return sessionmaker(second_engine, class_=JobSession)


def input_of(engine: Engine, job_id: str) -> object:
    with Session(engine) as session:
        return json.loads(inputs_of(session, [job_id])[job_id])


def test_a_claim_never_runs_the_input_that_a_rerun_has_replaced_meanwhile(
    fleet, engine, second_engine, others
):
    """Its snapshot holds the old input, its lock gets the new row."""
    with others.begin() as session:
        session.enqueue(index, {"version": 1})
    worker = fleet.start()

    with gate(engine, *BEFORE_CLAIM_LOCKS) as open_gate:
        claiming = stopped(second_engine, lambda: fleet.claim(worker))
        with others.begin() as session:
            queued = session.enqueue(index, {"version": 2}, on_duplicate="rerun")
        assert queued.state == "ready"
        open_gate()
        (claimed,) = claiming.result()

    assert claimed.id == str(queued.id)
    assert claimed.input is None
    assert input_of(engine, claimed.id) == {"version": 2}


def test_a_claim_never_takes_a_job_that_was_replaced_by_a_later_one(
    fleet, engine, second_engine, others
):
    with others.begin() as session:
        session.enqueue(index, {"version": 1})
    worker = fleet.start()

    with gate(engine, *BEFORE_CLAIM_LOCKS) as open_gate:
        claiming = stopped(second_engine, lambda: fleet.claim(worker))
        with others.begin() as session:
            session.enqueue(index, {"version": 2}, on_duplicate="replace", delay="1h")
        open_gate()
        assert claiming.result() == []

    with second_engine.begin() as connection:
        connection.execute(text("update sqla_job set run_at = now()"))
    (claimed,) = fleet.claim(worker)
    assert claimed.input == '{"version":2}'


def test_a_claim_never_takes_a_job_that_was_cancelled_meanwhile(
    fleet, engine, second_engine, others
):
    with others.begin() as session:
        queued = session.enqueue(index, {"version": 1})
    worker = fleet.start()

    with gate(engine, *BEFORE_CLAIM_LOCKS) as open_gate:
        claiming = stopped(second_engine, lambda: fleet.claim(worker))
        with others.begin() as session:
            cancel_job(session, queued.id)
        open_gate()
        assert claiming.result() == []

    assert fleet.job(queued.id).state == "cancelled"


def test_two_claims_at_once_share_the_jobs_and_take_none_twice(fleet, second_engine):
    with second_engine.begin() as connection:
        ids = {str(add_job(connection)) for _ in range(40)}
    first, second = fleet.start(), fleet.start()

    with gate(fleet.engine, *BEFORE_CLAIM_LOCKS) as open_gate:
        claiming = stopped(second_engine, lambda: fleet.claim(first, 30))
        theirs = {c.id for c in Fleet(second_engine).claim(second, 15)}
        open_gate()
        mine = {c.id for c in claiming.result()}

    assert len(theirs) == 15
    assert len(mine) == 25
    assert mine | theirs == ids
    assert {fleet.job(i).fence for i in ids} == {1}


def test_a_claim_locks_no_more_than_it_takes(fleet, second_engine):
    """T10: everything else can be locked by others while its transaction is open."""
    with second_engine.begin() as connection:
        for number in range(60):
            add_job(connection, priority=number % 10)
    worker = fleet.start()
    free = text("select count(*) from (select from sqla_job for update skip locked) f")

    # In a transaction that stays open, so that its locks are there to be seen.
    with Session(fleet.engine) as session, second_engine.connect() as look:
        assert len(claim(session, worker, {"default": 7})) == 7
        assert look.scalar(free) == 60 - 7


def test_a_claim_steps_over_jobs_that_others_hold(fleet, second_engine):
    with second_engine.begin() as connection:
        ids = [str(add_job(connection)) for _ in range(4)]
    worker = fleet.start()

    with second_engine.begin() as connection:
        connection.execute(
            text("select from sqla_job where id = any(:ids) for update"),
            {"ids": ids[:2]},
        )
        taken = [c.id for c in fleet.claim(worker, 3)]

    assert taken == ids[2:]
