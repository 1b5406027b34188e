"""What each outcome makes of a job, and what it leaves in the history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import NO_TENANT, Jobs, JobSession, clock
from sqla_jobs.models import Attempt, Job, JobBody, JobOutput
from sqla_jobs.queue.claim import Claim
from sqla_jobs.queue.control import cancel_job, retry_job
from sqla_jobs.queue.outcome import (
    Cancelled,
    Dead,
    Interrupted,
    Outcome,
    Released,
    Retry,
    Snooze,
    Succeeded,
)
from tests.support.fleet import GRACE, LABEL, TTL, Fleet
from tests.support.rows import NOW, add_attempt, add_job

pytestmark = pytest.mark.conformance

MINUTE = timedelta(minutes=1)
FAILED = Retry(MINUTE, "ValueError", "no such order")
TIMED_OUT = Retry(MINUTE, "JobTimeoutError", "30 s passed", timed_out=True)
ENDS: dict[str, Outcome] = {
    "succeeded": Succeeded('{"ok":true}'),
    "dead": Dead("ValueError", "never"),
    "cancelled": Cancelled("stopped by the handler"),
}
GOES_ON: dict[str, Outcome] = {
    "failed": FAILED,
    "snoozed": Snooze(MINUTE),
    "interrupted": Interrupted("shutdown"),
    "released": Released(),
}

jobs = Jobs()
work = jobs.declare(
    "shop.work",
    input=int,
    output=None,
    idempotency_key=lambda i: "one",
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


@pytest.fixture
def worker(fleet) -> str:
    return fleet.start(timedelta(days=9))


def add(engine: Engine, **values: object) -> str:
    with engine.begin() as connection:
        return str(add_job(connection, **values))


def payloads(engine: Engine, claimed: Claim) -> tuple[object, object]:
    """Return input and output of a job."""
    with Session(engine) as session:
        job = select(Job.input, Job.output).where(Job.id == UUID(claimed.id))
        return tuple(session.execute(job).one())


# --- one outcome, one row ------------------------------------------------------------


@pytest.mark.parametrize("state", list(ENDS))
def test_an_end_finishes_the_job_under_its_fence(fleet, engine, worker, state):
    add(engine)
    claimed = fleet.claim_one(worker, limits={"shop.work": 30.0})
    clock.advance(MINUTE)

    assert fleet.settle(worker, (claimed, ENDS[state])) == {claimed.id}

    job = fleet.job(claimed.id)
    assert (job.state, job.fence, job.attempt) == (state, 1, 1)
    assert (job.worker_id, job.deadline_at) == (None, None)
    assert job.finished_at == NOW + MINUTE
    assert job.attempted_at == NOW
    output = payloads(engine, claimed)[1]
    assert output == ({"ok": True} if state == "succeeded" else None)


def test_plain_success_leaves_no_history_and_none_leaves_no_output(
    fleet, engine, worker
):
    """The row says it all; a second row per job would be a third of the writes."""
    add(engine)
    claimed = fleet.claim_one(worker)
    fleet.settle(worker, (claimed, Succeeded(None)))

    assert fleet.history(claimed.id) == []
    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(JobOutput)) == 0


def test_a_failed_attempt_is_recorded_and_runs_again_after_its_delay(
    fleet, engine, worker
):
    add(engine)
    claimed = fleet.claim_one(worker)
    clock.advance(timedelta(seconds=2))
    fleet.settle(worker, (claimed, FAILED))

    job = fleet.job(claimed.id)
    assert (job.state, job.fence, job.attempt) == ("ready", 1, 1)
    assert job.run_at == NOW + timedelta(seconds=62)
    assert (job.worker_id, job.finished_at) == (None, None)
    (attempt,) = fleet.attempts(claimed.id)
    assert (attempt.fence, attempt.number, attempt.outcome) == (1, 1, "failed")
    assert (attempt.error_type, attempt.error) == ("ValueError", "no such order")
    assert str(attempt.worker_id) == worker
    assert attempt.worker == LABEL
    assert attempt.started_at == NOW
    assert attempt.ended_at == NOW + timedelta(seconds=2)


@pytest.mark.parametrize(
    ("outcome", "run_at", "recorded"),
    [
        (Snooze(MINUTE), NOW + 2 * MINUTE, [(1, "snoozed")]),
        (Interrupted("shutdown"), NOW + MINUTE, [(1, "interrupted")]),
        (Released(), NOW, []),
        (Released(MINUTE), NOW + 2 * MINUTE, []),
    ],
)
def test_what_is_not_counted_gives_the_attempt_back(
    fleet, worker, outcome, run_at, recorded
):
    add(fleet.engine, attempt=1)
    claimed = fleet.claim_one(worker)
    clock.advance(MINUTE)
    fleet.settle(worker, (claimed, outcome))

    job = fleet.job(claimed.id)
    assert (job.state, job.attempt, job.fence) == ("ready", 1, 1)
    assert job.run_at == run_at
    assert [(n - 1, o) for n, o in fleet.history(claimed.id)] == recorded
    assert job.interruptions == isinstance(outcome, Interrupted)


# --- how often a job runs ------------------------------------------------------------


def lose(fleet: Fleet, worker: str, claimed: Claim) -> None:
    """The worker dies; somebody else finds out."""
    fleet.expire(worker)
    assert [r.id for r in fleet.rescue()] == [claimed.id]


def overrun(fleet: Fleet, worker: str, claimed: Claim) -> None:
    """The deadline passes, and the worker does nothing about it."""
    clock.advance(timedelta(seconds=30) + GRACE + timedelta(seconds=1))
    fleet.renew(worker, [claimed])
    assert [r.timed_out for r in fleet.rescue()] == [True]


def fail(outcome: Outcome) -> Callable[[Fleet, str, Claim], None]:
    """The handler fails."""

    def end(fleet: Fleet, worker: str, claimed: Claim) -> None:
        assert fleet.settle(worker, (claimed, outcome)) == {claimed.id}

    return end


@pytest.mark.covers("C31", "C23")
@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (fail(FAILED), "failed"),
        (fail(TIMED_OUT), "timed_out"),
        (overrun, "timed_out"),
        (lose, "lost"),
    ],
    ids=["failed", "timed out", "overrun", "lost"],
)
def test_a_job_runs_exactly_as_often_as_it_may(fleet, engine, most, end, outcome):
    """Then it is dead, and its history says why."""
    job_id = add(engine, max_attempts=most)
    runs = 0
    while runs < 9:
        worker = fleet.start(TTL + MINUTE)
        claims = fleet.claim(worker, limits={"shop.work": 30.0})
        if not claims:
            break
        runs += 1
        end(fleet, worker, claims[0])
        clock.advance(2 * MINUTE)

    assert runs == most
    assert fleet.job(job_id).state == "dead"
    assert fleet.history(job_id) == [(n + 1, outcome) for n in range(most)]


def test_interruptions_are_not_counted_three_times_and_then_are(fleet, engine, worker):
    """A handler that dies in every shutdown must not come back for ever."""
    job_id = add(engine, max_attempts=2)
    seen = []
    for _ in range(5):
        claimed = fleet.claim_one(worker)
        fleet.settle(worker, (claimed, Interrupted("shutdown")))
        job = fleet.job(job_id)
        seen.append((claimed.attempt, job.state, job.interruptions))

    assert seen == [
        (1, "ready", 1),
        (1, "ready", 2),
        (1, "ready", 3),
        (1, "ready", 3),
        (2, "dead", 3),
    ]
    assert [o for _, o in fleet.history(job_id)] == ["interrupted"] * 5


@pytest.mark.parametrize("outcome", [Snooze(timedelta(0)), Released()])
def test_snooze_and_release_are_never_counted(fleet, engine, worker, outcome):
    job_id = add(engine, max_attempts=1)
    for _ in range(20):
        claimed = fleet.claim_one(worker)
        assert claimed.attempt == 1
        fleet.settle(worker, (claimed, outcome))
    assert fleet.job(job_id).state == "ready"


def test_an_operators_retry_of_a_dead_job_gives_it_one_attempt_more(
    fleet, engine, worker
):
    job_id = add(engine, max_attempts=1)
    first = fleet.claim_one(worker)
    fleet.settle(worker, (first, FAILED))
    with Session(engine) as session, session.begin():
        retry_job(session, fleet.job(job_id).id)
    second = fleet.claim_one(worker)
    assert (second.attempt, second.fence) == (2, 3)

    fleet.settle(worker, (second, FAILED))

    assert fleet.job(job_id).state == "dead"
    assert fleet.history(job_id) == [(1, "failed"), (2, "failed")]


# --- asked for meanwhile: cancel -----------------------------------------------------


@pytest.mark.parametrize("end", list(GOES_ON))
def test_a_cancel_request_turns_run_again_into_cancelled(fleet, engine, worker, end):
    job_id = add(engine)
    claimed = fleet.claim_one(worker)
    with Session(engine) as session, session.begin():
        cancel_job(session, fleet.job(job_id).id, reason="customer left")

    fleet.settle(worker, (claimed, GOES_ON[end]))

    job = fleet.job(job_id)
    assert (job.state, job.finished_at) == ("cancelled", NOW)
    assert job.cancel_reason == "customer left"
    assert fleet.claim(worker) == []


@pytest.mark.parametrize("end", list(ENDS))
def test_a_cancel_request_does_not_change_an_end(fleet, engine, worker, end):
    """What has been done stays done: success is not taken back."""
    job_id = add(engine)
    claimed = fleet.claim_one(worker)
    with Session(engine) as session, session.begin():
        cancel_job(session, fleet.job(job_id).id)

    fleet.settle(worker, (claimed, ENDS[end]))

    assert fleet.job(job_id).state == end


# --- asked for meanwhile: rerun ------------------------------------------------------


def enqueue(engine: Engine, number: int, **options: object) -> None:
    with sessionmaker(engine, class_=JobSession).begin() as session:
        session.enqueue(work, number, **options)


@pytest.mark.parametrize("end", list(ENDS))
def test_a_rerun_follows_every_end_as_a_new_life(fleet, engine, worker, end):
    enqueue(engine, 1)
    claimed = fleet.claim_one(worker)
    enqueue(engine, 2)
    enqueue(engine, 3, delay="5m")

    fleet.settle(worker, (claimed, ENDS[end]))

    job = fleet.job(claimed.id)
    assert (job.state, job.fence, job.attempt) == ("ready", 2, 0)
    assert (job.rerun, job.rerun_run_at, job.finished_at) == (False, None, None)
    assert job.run_at == NOW + 5 * MINUTE
    assert payloads(engine, claimed) == (3, None)
    assert fleet.history(claimed.id) == [(1, end)]
    clock.advance(5 * MINUTE)
    again = fleet.claim_one(worker)
    assert (again.input, again.attempt, again.fence) == ("3", 1, 3)


def test_a_rerun_follows_the_last_attempt_that_failed_or_was_lost(
    fleet, engine, worker
):
    enqueue(engine, 1)
    with engine.begin() as connection:
        connection.execute(text("update sqla_job set max_attempts = 1"))
    first = fleet.claim_one(worker)
    enqueue(engine, 2)
    fleet.settle(worker, (first, FAILED))
    second = fleet.claim_one(worker)
    assert (second.input, second.attempt) == ("2", 1)

    enqueue(engine, 3)
    lose(fleet, worker, second)

    (third,) = fleet.claim(fleet.start())
    assert (third.input, third.attempt) == ("3", 1)
    assert fleet.history(first.id) == [(1, "failed"), (1, "lost")]


@pytest.mark.parametrize("end", list(GOES_ON))
def test_a_rerun_outlives_an_attempt_that_is_no_end(fleet, engine, worker, end):
    """The attempt runs again with its own input; the newest one runs after that."""
    enqueue(engine, 1)
    first = fleet.claim_one(worker)
    enqueue(engine, 2)
    fleet.settle(worker, (first, GOES_ON[end]))
    clock.advance(MINUTE)
    second = fleet.claim_one(worker)
    assert second.input == "1"

    fleet.settle(worker, (second, Succeeded()))

    assert fleet.claim_one(worker).input == "2"


def test_a_rerun_outlives_a_lost_attempt(fleet, engine, worker):
    enqueue(engine, 1)
    first = fleet.claim_one(worker)
    enqueue(engine, 2)
    lose(fleet, worker, first)
    clock.advance(MINUTE)
    (second,) = fleet.claim(other := fleet.start())
    assert second.input == "1"

    fleet.settle(other, (second, Succeeded()))

    (third,) = fleet.claim(other)
    assert third.input == "2"


def test_a_cancel_after_the_rerun_drops_it_and_a_rerun_after_the_cancel_stays(
    fleet, engine, worker
):
    enqueue(engine, 1)
    first = fleet.claim_one(worker)
    job_id = fleet.job(first.id).id
    enqueue(engine, 2)
    with Session(engine) as session, session.begin():
        cancel_job(session, job_id)
    fleet.settle(worker, (first, FAILED))
    assert fleet.job(job_id).state == "cancelled"

    enqueue(engine, 3)
    second = fleet.claim_one(worker)
    with Session(engine) as session, session.begin():
        cancel_job(session, job_id)
    enqueue(engine, 4)
    fleet.settle(worker, (second, Cancelled()))
    third = fleet.claim_one(worker)
    assert third.input == "4"
    assert fleet.job(job_id).cancel_requested_at is None


# --- many, and broken ones -----------------------------------------------------------


def test_two_thousand_mixed_settlements_in_one_statement(fleet, engine, worker):
    with engine.begin() as connection:
        for _ in range(2000):
            add_job(connection)
    claims = fleet.claim(worker, 2000)
    outcomes = [*ENDS.values(), *GOES_ON.values()]
    ended = [(c, outcomes[n % 7]) for n, c in enumerate(claims)]

    assert fleet.settle(worker, *ended) == {c.id for c in claims}

    states = {str(i): s for i, s in fleet.states().items()}
    wanted = [*ENDS, *["ready"] * 4]
    assert [states[c.id] for c in claims] == [wanted[n % 7] for n in range(2000)]
    with Session(engine) as session:
        recorded = session.scalar(select(func.count()).select_from(Attempt))
        written = session.scalar(select(func.count()).select_from(JobOutput))
        bodies = session.scalar(select(func.count()).select_from(JobBody))
    assert recorded == sum(n % 7 in {1, 2, 3, 4, 5} for n in range(2000))
    assert written == sum(n % 7 == 0 for n in range(2000))
    assert bodies == 2000


@pytest.mark.covers("C36")
@pytest.mark.parametrize("way", ["settle", "rescue"])
def test_a_record_that_exists_already_stops_nothing(fleet, engine, worker, way):
    """However it got there: the job goes on, and so do its neighbours."""
    ids = [add(engine) for _ in range(3)]
    claims = fleet.claim(worker)
    with engine.begin() as connection:
        add_attempt(connection, fleet.job(ids[1]).id, 1, error="from a restore")

    if way == "settle":
        assert fleet.settle(worker, *((c, FAILED) for c in claims)) == set(ids)
    else:
        fleet.expire(worker)
        assert {r.id for r in fleet.rescue()} == set(ids)

    assert set(fleet.states().values()) == {"ready"}
    assert [len(fleet.attempts(i)) for i in ids] == [1, 1, 1]
