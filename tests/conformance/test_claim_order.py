"""What a claim takes, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import NO_TENANT, Jobs, JobSession, clock
from sqla_jobs.queue.claim import INLINE_BYTES, inputs_of
from sqla_jobs.queue.control import pause_queue, resume_queue
from sqla_jobs.queue.outcome import Succeeded
from tests.support.fleet import TTL, Fleet
from tests.support.rows import NOW, add_job

pytestmark = pytest.mark.conformance

SECOND = timedelta(seconds=1)

jobs = Jobs()
work = jobs.declare(
    "shop.work",
    input=str,
    output=None,
    idempotency_key=lambda i: i[:20],
    tenant=NO_TENANT,
)


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    clock.freeze(NOW)
    yield
    clock.thaw()


@pytest.fixture
def fleet(engine) -> Fleet:
    return Fleet(engine)


def add(engine: Engine, count: int = 1, /, **values: object) -> list[str]:
    with engine.begin() as connection:
        return [str(add_job(connection, **values)) for _ in range(count)]


def test_a_claim_owns_the_job_under_a_new_fence_and_counts_the_attempt(fleet, engine):
    (job_id,) = add(engine, fence=41, attempt=1, enqueued_by="ops")
    worker = fleet.start()

    claimed = fleet.claim_one(worker, limits={"shop.work": 90.5, "other": 1.0})

    job = fleet.job(job_id)
    assert (claimed.id, claimed.fence, claimed.attempt) == (job_id, 42, 2)
    assert (job.state, job.fence, job.attempt) == ("running", 42, 2)
    assert str(job.worker_id) == worker
    assert job.attempted_at == NOW
    assert job.deadline_at == NOW + timedelta(seconds=90.5)
    assert (claimed.name, claimed.tenant, claimed.queue) == ("shop.work", "", "default")
    assert (claimed.max_attempts, claimed.interruptions) == (3, 0)
    assert (claimed.run_at, claimed.enqueued_by) == (NOW, "ops")


def test_a_job_without_a_limit_has_no_deadline(fleet, engine):
    (job_id,) = add(engine)
    fleet.claim_one(fleet.start(), limits={"other": 1.0})
    assert fleet.job(job_id).deadline_at is None


def test_better_priorities_come_first_whatever_their_age(fleet, engine):
    """T19: strict, over all ten, and each claim takes the best that is left."""
    order = [
        (p, add(engine, priority=p, run_at=NOW - p * SECOND)[0]) for p in range(10)
    ]
    worker = fleet.start()

    taken = [fleet.claim_one(worker) for _ in range(3)] + fleet.claim(worker, 3)
    taken += fleet.claim(worker, 100)

    assert [(c.priority, c.id) for c in taken] == order


def test_inside_a_priority_the_older_run_at_comes_first_then_the_older_id(
    fleet, engine
):
    ids = [UUID(int=n) for n in (5, 4, 3, 2, 1)]
    ages = [1, 2, 3, 3, 3]
    for job_id, age in zip(ids, ages, strict=True):
        add(engine, id=job_id, run_at=NOW - age * SECOND)
    worker = fleet.start()

    taken = [fleet.claim_one(worker) for _ in ids]

    assert [UUID(c.id).int for c in taken] == [1, 2, 3, 4, 5]


def test_first_in_first_out_holds_in_the_hour_that_ends_summer_time(fleet, engine):
    """In the server's zone, half past two stands before ten past two."""
    early = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    later = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
    last = add(engine, run_at=later)
    first = add(engine, run_at=early)

    taken = fleet.claim(fleet.start())

    assert [c.id for c in taken] == first + last
    assert [c.run_at for c in taken] == [early, later]
    assert {c.run_at.tzinfo for c in taken} == {UTC}


def test_several_queues_get_exactly_their_rooms(fleet, engine):
    """T19: 60 places in one claim, whatever else is waiting."""
    for queue in ("mail", "pdf", "idle"):
        add(engine, 30, queue=queue, priority=3)
        add(engine, 30, queue=queue, priority=7)
    worker = fleet.start()

    taken = fleet.claim(worker, {"mail": 40, "pdf": 20, "idle": 0, "empty": 9})

    assert sorted({(c.queue, c.priority) for c in taken}) == [
        ("mail", 3),
        ("mail", 7),
        ("pdf", 3),
    ]
    assert [sum(c.queue == q for c in taken) for q in ("mail", "pdf")] == [40, 20]
    assert sum((c.queue, c.priority) == ("mail", 3) for c in taken) == 30


def test_no_room_asks_for_nothing(fleet, engine):
    add(engine)
    worker = fleet.start()
    assert fleet.claim(worker, 0) == []
    assert fleet.claim(worker, {}) == []


def test_a_job_runs_at_its_time_and_not_before(fleet, engine):
    (job_id,) = add(engine, run_at=NOW + timedelta(minutes=1))
    worker = fleet.start(timedelta(hours=1))
    assert fleet.claim(worker) == []
    assert fleet.next_due() == 60.0

    clock.advance(timedelta(seconds=59.999999))
    assert fleet.claim(worker) == []
    clock.advance(timedelta(microseconds=1))
    assert fleet.next_due() == 0.0
    assert [c.id for c in fleet.claim(worker)] == [job_id]
    assert fleet.next_due() is None


def test_a_waiting_job_is_claimed_when_its_time_comes(fleet, engine):
    (job_id,) = add(engine, 1, run_at=NOW + SECOND)
    with engine.begin() as connection:
        connection.execute(text("update sqla_job set state = 'waiting'"))
    worker = fleet.start()
    assert fleet.claim(worker) == []
    assert fleet.next_due() == 1.0
    clock.advance(SECOND)
    assert [c.id for c in fleet.claim(worker)] == [job_id]


def test_names_that_a_worker_does_not_know_are_left_for_others(fleet, engine):
    """They stand first in the queue, and starve nobody."""
    foreign = add(engine, 50, name="billing.new", priority=0)
    known = add(engine, 5)
    old, new = fleet.start(), fleet.start()

    taken = [c.id for c in fleet.claim(old, 10, unknown=["billing.new", "x"])]

    assert taken == known
    assert fleet.next_due(unknown=["billing.new"]) is None
    assert fleet.next_due() == 0.0
    assert {c.id for c in fleet.claim(new, 100)} == set(foreign)


def test_a_paused_queue_is_told_by_the_heartbeat(fleet, engine):
    worker = fleet.start()
    with Session(engine) as session, session.begin():
        pause_queue(session, "mail")
        pause_queue(session, "pdf")
    with Session(engine) as session, session.begin():
        resume_queue(session, "pdf")

    assert fleet.renew(worker).paused == {"mail"}


def test_next_due_looks_at_the_named_queues_over_all_priorities(fleet, engine):
    add(engine, queue="mail", priority=9, run_at=NOW + 5 * SECOND)
    add(engine, queue="mail", priority=0, run_at=NOW + 9 * SECOND)
    add(engine, queue="pdf", run_at=NOW + 7 * SECOND)

    assert fleet.next_due(["mail", "pdf"]) == 5.0
    assert fleet.next_due(["pdf"]) == 7.0
    assert fleet.next_due(["idle"]) is None
    assert fleet.next_due([]) is None


# --- the worker's own lease ----------------------------------------------------------


def test_a_worker_whose_lease_is_over_claims_nothing(fleet, engine):
    add(engine, 3)
    worker = fleet.start(TTL)
    clock.advance(TTL)

    assert fleet.claim(worker) == []
    assert set(fleet.states().values()) == {"ready"}


def test_a_worker_that_ended_its_lease_or_was_never_there_claims_nothing(fleet, engine):
    add(engine, 3)
    worker = fleet.start()
    fleet.expire(worker)

    assert fleet.claim(worker) == []
    assert fleet.claim(str(UUID(int=7))) == []


# --- inputs --------------------------------------------------------------------------


def test_small_inputs_come_with_the_claim_and_large_ones_are_fetched(fleet, engine):
    """All together they fit into the socket's buffers, whoever reads them."""
    sizes = {"small": 100, "large": INLINE_BYTES // 10 + 10}
    others = sessionmaker(engine, class_=JobSession)
    with others.begin() as session:
        for label, size in sizes.items():
            session.enqueue(work, label + "x" * size)
    worker = fleet.start()

    taken = {c.key: c for c in fleet.claim(worker, 10)}

    small, large = (taken[(label + "x" * 20)[:20]] for label in sizes)
    assert small.input == '"small' + "x" * 100 + '"'
    assert large.input is None
    with Session(engine) as session:
        fetched = inputs_of(session, [large.id, small.id])
    assert fetched[large.id] == '"large' + "x" * sizes["large"] + '"'
    assert fetched[small.id] == small.input


# --- visibility ----------------------------------------------------------------------


@pytest.mark.needs("skip_locked")
def test_a_late_commit_is_claimed_though_others_went_ahead(fleet, engine):
    """T17: there is no cursor that could have passed it."""
    worker = fleet.start()
    slow = sessionmaker(engine, class_=JobSession)()
    queued = slow.enqueue(work, "slow")
    slow.write_jobs()
    for _ in range(3):
        clock.advance(SECOND)
        add(engine, 5)
        assert len(fleet.claim(worker)) == 5

    slow.commit()

    assert [c.id for c in fleet.claim(worker)] == [str(queued.id)]
    slow.close()


@pytest.mark.needs("skip_locked")
def test_an_open_duplicate_does_not_hide_the_original(fleet, engine):
    """T21: a duplicate locks nothing of the row that it meets."""
    others = sessionmaker(engine, class_=JobSession)
    with others.begin() as session:
        original = session.enqueue(work, "once")
    worker = fleet.start()

    with others.begin() as session:
        session.enqueue(work, "once")
        session.write_jobs()
        assert [c.id for c in fleet.claim(worker)] == [str(original.id)]


def test_what_is_not_committed_is_neither_claimed_nor_due(fleet, engine):
    worker = fleet.start()
    with sessionmaker(engine, class_=JobSession)() as session:
        session.enqueue(work, "maybe")
        session.write_jobs()
        assert fleet.claim(worker) == []
        assert fleet.next_due() is None
        session.rollback()
    assert fleet.states() == {}


# --- beyond 32 bits ------------------------------------------------------------------


def test_a_fence_beyond_32_bits_goes_all_the_way(fleet, engine):
    """C93: claim, renew, settle and rescue carry it as it is."""
    add(engine, 2, fence=2**31 + 10)
    worker = fleet.start()

    first, second = fleet.claim(worker)
    assert first.fence == second.fence == 2**31 + 11
    assert fleet.renew(worker, [first, second]).lost == []
    assert fleet.settle(worker, (first, Succeeded())) == {first.id}
    fleet.expire(worker)
    assert [r.id for r in fleet.rescue()] == [second.id]
    assert fleet.job(second.id).fence == 2**31 + 12
    assert fleet.attempts(second.id)[0].fence == 2**31 + 11
