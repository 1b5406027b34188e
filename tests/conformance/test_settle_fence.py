"""T06: whoever has lost a job writes nothing for it, however it comes back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import NO_TENANT, Jobs, JobSession, clock
from sqla_jobs.exc import LeaseLostError
from sqla_jobs.models import Job, JobOutput
from sqla_jobs.queue.claim import Claim
from sqla_jobs.queue.control import cancel_job, retry_job
from sqla_jobs.queue.fence import AttemptGuard, guard
from sqla_jobs.queue.outcome import (
    Cancelled,
    Dead,
    Interrupted,
    Released,
    Retry,
    Snooze,
    Succeeded,
)
from sqla_jobs.queue.settle import Verdict
from tests.support.fleet import GRACE, TTL, Fleet
from tests.support.gates import BEFORE_SETTLE_LOCKS, gate, stopped
from tests.support.rows import NOW, add_job
from tests.support.shop import Effect, Order

pytestmark = [pytest.mark.conformance, pytest.mark.covers("T06")]

MINUTE = timedelta(minutes=1)
OUTCOMES = [
    Succeeded('"zombie"'),
    Retry(MINUTE, "ValueError", "zombie"),
    Dead("ValueError", "zombie"),
    Snooze(MINUTE),
    Cancelled("zombie"),
    Interrupted("zombie"),
    Released(MINUTE),
]

jobs = Jobs()
work = jobs.declare(
    "shop.work",
    input=int,
    output=None,
    idempotency_key=lambda i: f"{i}",
    tenant=NO_TENANT,
    on_duplicate="rerun",
)


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    clock.freeze(NOW)
    yield
    clock.thaw()


@pytest.fixture
def fleet(engine) -> Fleet:
    return Fleet(engine)


def row(fleet: Fleet, job_id: str) -> tuple[object, ...]:
    """Return everything there is about a job."""
    with fleet.engine.connect() as connection:
        job = connection.execute(
            select(Job.__table__).where(Job.id == UUID(str(job_id)))
        ).one()
        output = connection.execute(select(JobOutput.output)).all()
    history = [(a.fence, a.outcome, a.error) for a in fleet.attempts(job_id)]
    return (*job, output, history)


def taken_over(fleet: Fleet) -> tuple[str, Claim, str, Claim]:
    """A worker freezes beyond its lease; another one runs the job."""
    with fleet.engine.begin() as connection:
        add_job(connection)
    zombie = fleet.start()
    old = fleet.claim_one(zombie)
    clock.advance(TTL + GRACE + MINUTE)
    heir = fleet.start()
    assert [r.id for r in fleet.rescue()] == [old.id]
    clock.advance(MINUTE)
    heir = fleet.start()
    new = fleet.claim_one(heir)
    assert new.id == old.id
    assert new.fence > old.fence
    return zombie, old, heir, new


def given_back(fleet: Fleet) -> tuple[str, Claim, str, Claim]:
    """The attempt's number comes again: claimed, snoozed, claimed by another."""
    with fleet.engine.begin() as connection:
        add_job(connection)
    zombie, heir = fleet.start(), fleet.start()
    old = fleet.claim_one(zombie)
    fleet.settle(zombie, (old, Snooze(timedelta(0))))
    new = fleet.claim_one(heir)
    assert (new.attempt, new.id) == (old.attempt, old.id)
    return zombie, old, heir, new


def claimed_again(fleet: Fleet) -> tuple[str, Claim, str, Claim]:
    """The same, but by the same worker: only the fence differs."""
    with fleet.engine.begin() as connection:
        add_job(connection)
    worker = fleet.start()
    old = fleet.claim_one(worker)
    fleet.settle(worker, (old, Snooze(timedelta(0))))
    return worker, old, worker, fleet.claim_one(worker)


def finished(fleet: Fleet) -> tuple[str, Claim, str, Claim]:
    """A whole life later: done, retried by an operator, claimed."""
    with fleet.engine.begin() as connection:
        job_id = add_job(connection)
    zombie, heir = fleet.start(), fleet.start()
    old = fleet.claim_one(zombie)
    fleet.settle(zombie, (old, Dead("ValueError", "first life")))
    with Session(fleet.engine) as session, session.begin():
        retry_job(session, job_id)
    return zombie, old, heir, fleet.claim_one(heir)


WAYS = pytest.mark.parametrize("way", [taken_over, given_back, claimed_again, finished])


@WAYS
@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: type(o).__name__)
def test_a_settle_under_an_old_fence_changes_nothing(fleet, way, outcome):
    zombie, old, heir, new = way(fleet)
    before = row(fleet, old.id)

    assert fleet.settle(zombie, (old, outcome)) == set()
    assert fleet.settle_alone(zombie, old, outcome) is Verdict.STALE

    assert row(fleet, old.id) == before
    assert fleet.settle(heir, (new, Succeeded())) == {new.id}


@WAYS
def test_another_worker_cannot_settle_with_the_right_fence(fleet, way):
    _, _, _, new = way(fleet)
    stranger = fleet.start()
    before = row(fleet, new.id)

    assert fleet.settle(stranger, (new, Succeeded())) == set()
    assert fleet.settle_alone(stranger, new, Succeeded()) is Verdict.STALE

    assert row(fleet, new.id) == before


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: type(o).__name__)
def test_a_second_settle_of_the_same_attempt_changes_nothing(fleet, outcome):
    with fleet.engine.begin() as connection:
        add_job(connection)
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    assert fleet.settle(worker, (claimed, outcome)) == {claimed.id}
    before = row(fleet, claimed.id)
    clock.advance(MINUTE)

    assert fleet.settle(worker, (claimed, Succeeded('"twice"'))) == set()
    assert fleet.settle_alone(worker, claimed, outcome) is Verdict.STALE

    assert row(fleet, claimed.id) == before


@WAYS
def test_the_heartbeat_tells_that_a_job_is_lost(fleet, way):
    zombie, old, heir, new = way(fleet)
    if way is not taken_over:
        assert fleet.renew(zombie, [old]).lost == [old.id]
    assert fleet.renew(heir, [new]).lost == []


# --- the attempt's own session -------------------------------------------------------


@WAYS
@pytest.mark.parametrize("completing", [False, True])
def test_a_zombies_session_commits_nothing(fleet, way, completing):
    zombie, old, _, _ = way(fleet)
    before = row(fleet, old.id)
    attempt = fleet.guard(zombie, old)
    with JobSession(fleet.engine) as session:
        guard(session, attempt)
        session.add(Order(id=1, org_id=1))
        session.enqueue(work, 7)
        if completing:
            attempt.complete('"zombie"')

        with pytest.raises(LeaseLostError):
            session.commit()

    assert not attempt.completed
    assert row(fleet, old.id) == before
    with Session(fleet.engine) as session:
        assert session.scalars(select(Order)).all() == []
    assert len(fleet.states()) == 1


@pytest.fixture
def running(fleet) -> tuple[Fleet, str, Claim, AttemptGuard]:
    with fleet.engine.begin() as connection:
        add_job(connection)
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    return fleet, worker, claimed, fleet.guard(worker, claimed)


def test_completion_and_effects_are_one_commit(running):
    fleet, worker, claimed, attempt = running
    with JobSession(fleet.engine) as session:
        guard(session, attempt)
        session.add(Effect(name="charged"))
        session.enqueue(work, 7)
        attempt.complete('{"ok":true}')
        session.commit()

    assert attempt.completed
    assert fleet.job(claimed.id).state == "succeeded"
    assert sorted(fleet.states().values()) == ["ready", "succeeded"]
    with Session(fleet.engine) as session:
        assert session.scalars(select(JobOutput.output)).all() == [{"ok": True}]
        assert session.scalars(select(Effect.name)).all() == ["charged"]
    assert fleet.settle(worker, (claimed, Succeeded())) == set()


def test_a_commit_in_the_middle_keeps_the_job_running(running):
    fleet, worker, claimed, attempt = running
    with JobSession(fleet.engine) as session:
        guard(session, attempt)
        session.add(Effect(name="half"))
        session.commit()
        assert fleet.job(claimed.id).state == "running"
        session.add(Effect(name="whole"))
        session.rollback()

    assert not attempt.completed
    assert fleet.settle(worker, (claimed, Succeeded())) == {claimed.id}
    with Session(fleet.engine) as session:
        assert session.scalars(select(Effect.name)).all() == ["half"]


def test_a_session_that_did_nothing_still_completes(running):
    fleet, _, claimed, attempt = running
    with JobSession(fleet.engine) as session:
        guard(session, attempt)
        attempt.complete(None)
        session.commit()
    assert fleet.job(claimed.id).state == "succeeded"


def test_an_abandoned_session_commits_nothing_though_the_lease_holds(running):
    fleet, _, claimed, attempt = running
    with JobSession(fleet.engine) as session:
        guard(session, attempt)
        session.add(Effect(name="late"))
        attempt.complete(None)
        attempt.abandon(TimeoutError("30 s"))
        with pytest.raises(TimeoutError):
            session.commit()

    assert fleet.job(claimed.id).state == "running"
    with Session(fleet.engine) as session:
        assert session.scalars(select(Effect)).all() == []


def test_a_completing_commit_honours_a_rerun_that_came_meanwhile(fleet, engine):
    others = sessionmaker(engine, class_=JobSession)
    with others.begin() as session:
        session.enqueue(work, 1)
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    attempt = fleet.guard(worker, claimed)
    with others.begin() as session:
        session.enqueue(work, 1, delay="1m")

    with others() as session:
        guard(session, attempt)
        attempt.complete(None)
        session.commit()

    job = fleet.job(claimed.id)
    assert (job.state, job.fence, job.attempt) == ("ready", 2, 0)
    assert job.run_at == NOW + MINUTE
    assert fleet.history(claimed.id) == [(1, "succeeded")]


@pytest.mark.needs("server")
@pytest.mark.parametrize("completing", [False, True])
def test_a_transaction_that_holds_its_job_may_idle_for_seconds_only(
    running, completing
):
    """Frozen between that and its COMMIT, it would hide the job from every rescue."""
    fleet, _, _, attempt = running
    shown: list[object] = []
    limit = "show idle_in_transaction_session_timeout"

    def last(connection):
        shown.append(connection.exec_driver_sql(limit).scalar())

    event.listen(fleet.engine, "commit", last)
    with JobSession(fleet.engine) as session:
        guard(session, attempt)
        session.add(Effect(name="x"))
        if completing:
            attempt.complete(None)
        session.commit()
    event.remove(fleet.engine, "commit", last)

    assert shown == ["15s"]
    with fleet.engine.connect() as connection:
        assert connection.exec_driver_sql(limit).scalar() == "0"


# --- rows that others hold -----------------------------------------------------------


def hold(engine: Engine, job_id: str) -> Session:
    """Open a transaction that holds the job's row, as a cancel does."""
    session = Session(engine)
    session.execute(
        text("select from sqla_job where id = cast(:id as uuid) for update"),
        {"id": job_id},
    )
    return session


@pytest.mark.needs("skip_locked")
def test_a_row_that_somebody_holds_does_not_stop_its_batch(fleet, second_engine):
    with fleet.engine.begin() as connection:
        for _ in range(3):
            add_job(connection)
    worker = fleet.start()
    claims = fleet.claim(worker)
    held = claims[1]
    holder = hold(second_engine, held.id)

    accepted = fleet.settle(worker, *((c, Succeeded()) for c in claims))
    assert accepted == {claims[0].id, claims[2].id}
    assert fleet.settle_alone(worker, held, Succeeded(), "20ms") is Verdict.BUSY
    assert fleet.was_settled(worker, held) is Verdict.BUSY

    holder.rollback()
    assert fleet.settle_alone(worker, held, Succeeded()) is Verdict.ACCEPTED
    assert fleet.was_settled(worker, held) is Verdict.ACCEPTED


@pytest.mark.needs("skip_locked")
def test_settle_alone_waits_for_a_cancel_and_honours_it(fleet, second_engine):
    with fleet.engine.begin() as connection:
        job_id = add_job(connection)
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    with JobSession(second_engine) as session:
        cancel_job(session, job_id, reason="left")
        session.write_jobs()
        settling = stopped(
            second_engine,
            lambda: fleet.settle_alone(
                worker, claimed, Retry(MINUTE, "ValueError", "no"), "20s"
            ),
        )
        session.commit()
        assert settling.result() is Verdict.ACCEPTED

    assert fleet.job(job_id).state == "cancelled"


@pytest.mark.needs("skip_locked")
def test_a_settle_sees_a_cancel_that_commits_inside_its_statement(fleet, second_engine):
    with fleet.engine.begin() as connection:
        job_id = add_job(connection)
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    with gate(fleet.engine, *BEFORE_SETTLE_LOCKS) as open_gate:
        settling = stopped(
            second_engine,
            lambda: fleet.settle(worker, (claimed, Snooze(MINUTE))),
        )
        with Session(second_engine) as session, session.begin():
            cancel_job(session, job_id)
        open_gate()
        assert settling.result() == {claimed.id}

    assert fleet.job(job_id).state == "cancelled"


@pytest.mark.needs("skip_locked")
def test_a_settle_runs_the_newest_input_of_a_rerun_that_commits_inside_it(
    fleet, engine, second_engine
):
    others = sessionmaker(second_engine, class_=JobSession)
    with others.begin() as session:
        session.enqueue(work, 1)
    with engine.begin() as connection:
        connection.execute(text("update sqla_job_body set input = '\"old\"'"))
    worker = fleet.start()
    claimed = fleet.claim_one(worker)
    with gate(engine, *BEFORE_SETTLE_LOCKS) as open_gate:
        settling = stopped(
            second_engine, lambda: fleet.settle(worker, (claimed, Succeeded()))
        )
        with others.begin() as session:
            session.enqueue(work, 1)
        open_gate()
        assert settling.result() == {claimed.id}

    assert fleet.claim_one(worker).input == "1"
