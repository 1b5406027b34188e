"""A rerun that meets claim, settle and rescue: it is always followed by a run."""

from __future__ import annotations

import json
import threading

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session as PlainSession

from sqla_jobs import JobSession, enqueue, write_jobs
from sqla_jobs.queue.claim import inputs_of
from sqla_jobs.queue.fence import guard
from sqla_jobs.queue.outcome import Succeeded
from sqla_jobs.queue.settle import Verdict
from tests.support.enqueuing import Work, stored, work
from tests.support.fleet import Fleet
from tests.support.gates import Background, stopped
from tests.support.shop import Effect


@pytest.fixture
def fleet(second_engine):
    return Fleet(second_engine)


@pytest.fixture
def ready(Session):
    with Session.begin() as session:
        session.enqueue(work, Work("k", 1))


def rerun(engine, n):
    """Enqueue ``k`` once more and write it; the transaction stays open."""
    session = PlainSession(engine)
    handle = enqueue(session, work, Work("k", n), on_duplicate="rerun")
    write_jobs(session)
    return session, handle


def given(fleet, claimed):
    """Return the input of a claim, fetched when it did not come along."""
    if claimed.input is not None:
        return claimed.input
    with PlainSession(fleet.autocommit) as session:
        return inputs_of(session, [claimed.id])[claimed.id]


def test_a_ready_job_is_locked_so_that_no_claim_starts_it_with_the_old_input(
    engine, fleet, ready
):
    """A claim steps over it; after the commit it runs with the newest input."""
    worker = fleet.start()
    session, handle = rerun(engine, 2)
    assert fleet.claim(worker) == []
    session.commit()
    session.close()
    claimed = fleet.claim_one(worker)
    assert claimed.id == str(handle.id)
    assert json.loads(given(fleet, claimed))["n"] == 2


def test_a_rerun_waits_for_a_settle_and_begins_a_new_life(engine, fleet, ready):
    """It read "running", waits for the row, and finds "succeeded": nothing is lost."""
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    completing = JobSession(engine)
    attempt = fleet.guard(worker, claimed)
    guard(completing, attempt)
    completing.add(Effect(name="done"))
    attempt.complete(None)

    gate, opened = threading.Event(), threading.Event()

    def last(connection):
        opened.set()
        gate.wait(20)

    event.listen(engine, "commit", last)
    settling = Background(completing.commit)
    assert opened.wait(20)  # settled, not committed
    waiting = stopped(fleet.engine, lambda: rerun(fleet.engine, 2))
    gate.set()
    settling.result()
    event.remove(engine, "commit", last)
    session, handle = waiting.result()
    assert (handle.outcome, handle.state) == ("rerun", "ready")
    session.commit()
    session.close()
    completing.close()
    again = fleet.claim_one(worker)
    assert (again.id, again.attempt, again.fence) == (claimed.id, 1, claimed.fence + 2)
    assert stored(engine, "k").input["n"] == 2


def test_a_settle_waits_for_a_rerun_and_runs_again(engine, fleet, ready):
    """The rerun is written and not committed when the attempt ends."""
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    session, _ = rerun(engine, 2)
    assert fleet.settle(worker, (claimed, Succeeded(None))) == set()  # steps over
    alone = stopped(
        engine,
        lambda: fleet.settle_alone(worker, claimed, Succeeded(None), patience="10s"),
    )
    session.commit()
    session.close()
    assert alone.result() is Verdict.ACCEPTED
    assert fleet.claim_one(worker).id == claimed.id
    assert stored(engine, "k").input["n"] == 2


def test_a_rerun_that_rolls_back_leaves_the_attempt_its_end(engine, fleet, ready):
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    session, _ = rerun(engine, 2)
    alone = stopped(
        engine,
        lambda: fleet.settle_alone(worker, claimed, Succeeded(None), patience="10s"),
    )
    session.rollback()
    session.close()
    assert alone.result() is Verdict.ACCEPTED
    assert fleet.claim(worker) == []
    assert stored(engine, "k").state == "succeeded"


def test_every_rerun_of_a_busy_job_is_followed_by_a_run(make_engine, Session, ready):
    """A run that began after the last rerun committed has its input."""
    engine = make_engine(pool_size=10)
    fleet = Fleet(engine)
    worker = fleet.start()
    runs, ended = [], threading.Event()

    def work_on():
        while True:
            over = ended.is_set()
            for claimed in fleet.claim(worker):
                runs.append(json.loads(given(fleet, claimed))["n"])
                while not fleet.settle(worker, (claimed, Succeeded(None))):
                    assert claimed.id in {str(i) for i in fleet.states()}
            if over and set(fleet.states().values()) == {"succeeded"}:
                return

    working = Background(work_on)
    for n in range(2, 60):
        with Session.begin() as session:
            session.enqueue(work, Work("k", n), on_duplicate="rerun")
    ended.set()
    working.result(30)
    assert runs[-1] == 59
    assert runs == sorted(runs)
