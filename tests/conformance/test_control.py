"""What people do to jobs: each verb is one guarded step, and says when it was too late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import attrs
import psycopg
import pytest
from sqlalchemy import Engine, event, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sqla_jobs import clock
from sqla_jobs.declare.registry import Jobs
from sqla_jobs.declare.tenant import NO_TENANT
from sqla_jobs.exc import (
    InvalidOptionError,
    JobNotCancellableError,
    JobNotDiscardableError,
    JobNotFoundError,
    JobNotRetryableError,
    PayloadError,
)
from sqla_jobs.models import Attempt, Job, JobBody, JobOutput, QueueRow
from sqla_jobs.queue.control import (
    cancel_job,
    discard_job,
    find_job,
    job_output,
    pause_queue,
    resume_queue,
    retry_job,
)
from sqla_jobs.queue.enqueue import enqueue, write_jobs
from sqla_jobs.queue.wakeup import channel
from sqla_jobs.session import JobSession
from sqla_jobs.states import FINISHED
from tests.support.rows import NOW, add_attempt, add_job
from tests.support.server import conninfo
from tests.support.shop import Order
from tests.support.waiting import wait_for_lock

pytestmark = pytest.mark.conformance

STATES = ["ready", "waiting", "running", "succeeded", "dead", "cancelled"]
NOBODY = UUID(int=404)
LATER = NOW + timedelta(hours=1)

jobs = Jobs()


@attrs.frozen
class Charge:
    org: int
    order: int


@attrs.frozen
class Receipt:
    number: str


charge = jobs.declare(
    "shop.charge",
    input=Charge,
    output=Receipt,
    idempotency_key=lambda i: f"charge:{i.order}",
    tenant=lambda i: i.org,
)
other = jobs.declare(
    "shop.other",
    input=Charge,
    output=Receipt,
    idempotency_key=lambda i: f"{i.order}",
    tenant=NO_TENANT,
)


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    clock.freeze(LATER)
    yield
    clock.thaw()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    # Its queries write what is pending, so that a look shows what a verb did.
    with JobSession(engine) as session:
        yield session


def read(session: Session, job_id: UUID) -> Job:
    session.expire_all()
    return session.get_one(Job, job_id)


# --- cancel --------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["ready", "waiting"])
def test_cancel_ends_a_job_that_waits_at_once(session, state):
    job_id = add_job(session, state, fence=3)

    cancel_job(session, job_id, reason="customer left")
    session.commit()

    job = read(session, job_id)
    assert (job.state, job.finished_at) == ("cancelled", LATER)
    assert job.cancel_reason == "customer left"
    assert job.fence == 3


def test_cancel_only_asks_a_running_job(session):
    """Its attempt still owns it: fence, owner and state stay."""
    job_id = add_job(session, "running", fence=7)
    owner = read(session, job_id).worker_id

    cancel_job(session, job_id, reason="too late today")
    session.commit()

    job = read(session, job_id)
    assert (job.state, job.fence, job.worker_id) == ("running", 7, owner)
    assert (job.cancel_requested_at, job.finished_at) == (LATER, None)
    assert job.cancel_reason == "too late today"


def test_a_second_cancel_keeps_the_first_request_and_the_newest_reason(session):
    job_id = add_job(session, "running")
    cancel_job(session, job_id, reason="first")
    session.commit()
    clock.advance(timedelta(minutes=1))
    cancel_job(session, job_id)
    assert read(session, job_id).cancel_reason == "first"

    cancel_job(session, job_id, reason="second")

    job = read(session, job_id)
    assert (job.cancel_requested_at, job.cancel_reason) == (LATER, "second")


def test_cancel_drops_a_pending_rerun(session):
    """Else the job would run once more after it was cancelled."""
    job_id = add_job(session, "running", rerun=True, rerun_run_at=LATER)
    session.execute(
        update(JobBody).where(JobBody.job_id == job_id).values(rerun_input={"n": 2})
    )

    cancel_job(session, job_id)
    session.commit()

    job = read(session, job_id)
    assert (job.rerun, job.rerun_run_at) == (False, None)
    body = session.get_one(JobBody, job_id)
    assert body.rerun_input is None
    assert body.input is not None
    # SQL's NULL, not JSON's: what settle asks is IS NULL.
    null = select(JobBody.rerun_input.is_(None)).where(JobBody.job_id == job_id)
    assert session.scalar(null) is True


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_cancel_of_a_finished_job_tells_its_state_and_changes_nothing(session, state):
    job_id = add_job(session, state)
    before = read(session, job_id).finished_at

    with pytest.raises(JobNotCancellableError) as refused:
        cancel_job(session, job_id)

    assert (refused.value.job_id, refused.value.state) == (job_id, state)
    job = read(session, job_id)
    assert (job.state, job.finished_at) == (state, before)
    assert job.cancel_requested_at is None


@pytest.mark.parametrize("verb", [cancel_job, retry_job, discard_job])
def test_a_verb_on_an_unknown_job_says_so(session, verb):
    with pytest.raises(JobNotFoundError) as refused:
        verb(session, NOBODY)
    assert refused.value.job_id == NOBODY


@pytest.mark.parametrize(
    ("reason", "problem"),
    [("a\x00b", "NUL"), ("\ud800", "surrogate"), ("x" * 1001, "longer")],
)
def test_a_reason_that_cannot_be_stored_is_refused_at_the_call(
    session, reason, problem
):
    job_id = add_job(session)
    with pytest.raises(PayloadError, match=problem):
        cancel_job(session, job_id, reason=reason)
    assert read(session, job_id).state == "ready"


@pytest.mark.needs("skip_locked")
@pytest.mark.covers("C44")
def test_a_cancel_that_waited_for_a_completion_comes_too_late(engine, second_engine):
    """The guard is judged on the version of the row that the completion left."""
    with engine.begin() as setup:
        job_id = add_job(setup, "running")
    said: list[BaseException | None] = []

    def cancel() -> None:
        with Session(second_engine) as session:
            try:
                cancel_job(session, job_id)
                session.commit()
                said.append(None)
            except JobNotCancellableError as error:
                said.append(error)

    with engine.connect() as worker:
        done = {"state": "succeeded", "worker_id": None, "finished_at": NOW}
        worker.execute(update(Job).where(Job.id == job_id).values(done))
        canceller = threading.Thread(target=cancel)
        canceller.start()
        wait_for_lock(engine)
        worker.commit()
        canceller.join()

    [error] = said
    assert isinstance(error, JobNotCancellableError)
    assert error.state == "succeeded"
    with Session(engine) as session:
        assert read(session, job_id).cancel_requested_at is None


@pytest.mark.needs("skip_locked")
@pytest.mark.covers("C44")
def test_a_cancel_that_waited_for_a_claim_asks_the_running_job(engine, second_engine):
    """Ready when looked at, running when locked: flagged, not ended under its owner."""
    with engine.begin() as setup:
        job_id = add_job(setup, "ready")

    def cancel() -> None:
        with Session(second_engine) as session, session.begin():
            cancel_job(session, job_id, reason="r")

    with engine.connect() as worker:
        taken = {"state": "running", "worker_id": UUID(int=1), "fence": 1}
        worker.execute(update(Job).where(Job.id == job_id).values(taken))
        canceller = threading.Thread(target=cancel)
        canceller.start()
        wait_for_lock(engine)
        worker.commit()
        canceller.join()

    with Session(engine) as session:
        job = read(session, job_id)
    assert (job.state, job.finished_at) == ("running", None)
    assert job.cancel_requested_at is not None


# --- retry ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_retry_makes_a_finished_job_ready_under_a_new_fence(session, state):
    job_id = add_job(
        session,
        state,
        attempt=3,
        fence=9,
        interruptions=2,
        cancel_requested_at=NOW,
        cancel_reason="because",
        output={"number": "A1"},
    )
    add_attempt(session, job_id, 1)

    retry_job(session, job_id)
    session.commit()

    job = read(session, job_id)
    assert (job.state, job.fence, job.run_at) == ("ready", 10, LATER)
    assert (job.attempt, job.max_attempts, job.interruptions) == (3, 4, 0)
    assert (job.finished_at, job.cancel_requested_at) == (None, None)
    assert job.cancel_reason is None
    assert session.get(JobOutput, job_id) is None
    # The success, which only the row told of, is recorded.
    ended = [(1, "failed"), *([(3, "succeeded")] if state == "succeeded" else [])]
    assert [(a.number, a.outcome) for a in job.attempts] == ended
    assert session.get(JobBody, job_id) is not None


def test_retry_leaves_attempts_that_are_left(session):
    job_id = add_job(session, "dead", attempt=1, max_attempts=10)
    retry_job(session, job_id)
    assert read(session, job_id).max_attempts == 10


@pytest.mark.parametrize("state", ["ready", "waiting", "running"])
def test_retry_of_an_unfinished_job_tells_its_state(session, state):
    job_id = add_job(session, state)
    with pytest.raises(JobNotRetryableError) as refused:
        retry_job(session, job_id)
    assert (refused.value.job_id, refused.value.state) == (job_id, state)
    assert read(session, job_id).state == state


@pytest.mark.needs("skip_locked")
def test_two_retries_at_once_raise_the_fence_once(engine, second_engine):
    with engine.begin() as setup:
        job_id = add_job(setup, "dead", fence=4)
    said: list[str] = []

    def retry() -> None:
        with Session(second_engine) as session:
            try:
                retry_job(session, job_id)
                session.commit()
            except JobNotRetryableError as error:
                said.append(error.state)

    with JobSession(engine) as first:
        retry_job(first, job_id)
        first.write_jobs()
        second = threading.Thread(target=retry)
        second.start()
        wait_for_lock(engine)
        first.commit()
        second.join()
        assert said == ["ready"]
        assert read(first, job_id).fence == 5


# --- discard -------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_discard_deletes_a_finished_job_with_all_that_belongs_to_it(session, state):
    kept = add_job(session, state, output={"number": "B"})
    add_attempt(session, kept, 1)
    job_id = add_job(session, state, output={"number": "A"})
    add_attempt(session, job_id, 1)
    add_attempt(session, job_id, 2)

    discard_job(session, job_id)
    session.commit()

    for table in (Job, JobBody, JobOutput, Attempt):
        assert session.scalar(select(func.count()).select_from(table)) == 1
    assert read(session, kept).state == state


@pytest.mark.parametrize("state", ["ready", "waiting", "running"])
def test_discard_of_an_unfinished_job_tells_its_state(session, state):
    job_id = add_job(session, state)
    with pytest.raises(JobNotDiscardableError) as refused:
        discard_job(session, job_id)
    assert (refused.value.job_id, refused.value.state) == (job_id, state)
    assert session.get(JobBody, job_id) is not None


# --- all verbs -----------------------------------------------------------------------


@pytest.mark.parametrize("verb", [cancel_job, retry_job, discard_job])
def test_a_verb_belongs_to_the_callers_transaction(session, verb):
    """Rolled back, it never happened."""
    state = "ready" if verb is cancel_job else "dead"
    job_id = add_job(session, state)
    session.commit()

    verb(session, job_id)
    session.rollback()

    assert read(session, job_id).state == state


def test_the_verbs_take_the_proxy_that_flask_users_have(engine):
    proxy = scoped_session(sessionmaker(engine))
    waiting, dead = add_job(proxy()), add_job(proxy(), "dead")
    key = add_job(proxy(), name="shop.charge", tenant="7", key="charge:1")

    cancel_job(proxy, waiting)
    retry_job(proxy, dead)
    discard_job(proxy, waiting)
    found = find_job(proxy, charge, Charge(7, 1))
    assert found is not None
    assert found.id == key
    assert job_output(proxy, charge, key) is None
    assert pause_queue(proxy, "default")
    proxy.remove()


def test_an_async_session_runs_the_verbs_without_twins(async_engine, engine):
    """``await session.run_sync(verb, id)``; typed, since the ids are positional."""
    with engine.begin() as setup:
        ready, dead = add_job(setup), add_job(setup, "dead")

    async def steer() -> None:
        async with AsyncSession(async_engine) as session:
            await session.run_sync(cancel_job, ready, reason="async")
            await session.run_sync(retry_job, dead)
            assert await session.run_sync(pause_queue, "default")
            await session.commit()
            await session.run_sync(discard_job, ready)
            await session.commit()
        await async_engine.dispose()

    asyncio.run(steer())
    with Session(engine) as look:
        assert look.get(Job, ready) is None
        assert read(look, dead).state == "ready"


class Routing(Session):
    """Reads go to a replica that never sees anything; a common recipe."""

    def __init__(self, primary: Engine, replica: Engine) -> None:
        super().__init__()
        self.primary, self.replica = primary, replica

    def get_bind(self, mapper=None, *, clause=None, **kw):
        writes = clause is not None and clause.is_dml
        return self.primary if self._flushing or writes else self.replica


def test_the_verbs_ask_the_primary_of_a_routing_session(engine):
    """A replica that lags knows no job, or an old state of it."""
    from sqlalchemy import create_engine

    with engine.begin() as setup:
        job_id = add_job(setup, "dead")
    nowhere = create_engine("postgresql+psycopg://127.0.0.1:1/none")  # never opened
    with Routing(engine, nowhere) as session:
        retry_job(session, job_id)
        cancel_job(session, job_id)
        discard_job(session, job_id)
        session.commit()
    with Session(engine) as look:
        assert look.get(Job, job_id) is None


@pytest.mark.needs("schemas")
def test_the_verbs_obey_a_schema_translate_map(databases, empty_url, make_engine):
    from sqlalchemy import create_engine

    from sqla_jobs.models import metadata

    plain = create_engine(empty_url)
    engine = plain.execution_options(schema_translate_map={metadata.schema: "queues"})
    with plain.begin() as setup:
        setup.execute(text("CREATE SCHEMA queues"))
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        job_id = add_job(session)
        cancel_job(session, job_id)
        retry_job(session, job_id)
        cancel_job(session, job_id)
        assert pause_queue(session, "default")
        assert resume_queue(session, "default")
        discard_job(session, job_id)
    plain.dispose()


# --- at the end of the transaction -----------------------------------------------------

VERBS = [
    pytest.param(cancel_job, "ready", JobNotCancellableError, id="cancel"),
    pytest.param(retry_job, "dead", JobNotRetryableError, id="retry"),
    pytest.param(discard_job, "dead", JobNotDiscardableError, id="discard"),
]
HOLD = select(Job.id).with_for_update(nowait=True)


@pytest.mark.parametrize(("verb", "state", "error"), VERBS)
def test_a_verb_locks_nothing_before_the_commit(
    engine, second_engine, verb, state, error
):
    with engine.begin() as setup:
        add_job(setup, state)
    with Session(engine) as session:
        verb(session, session.scalars(select(Job.id)).one())
        session.add(Order(id=1, org_id=1))
        session.flush()
        with second_engine.begin() as other:
            other.execute(HOLD)
        session.commit()
    with Session(second_engine) as look:
        found = look.scalars(select(Job.state)).one_or_none()
    assert found != state


@pytest.mark.needs("skip_locked")
def test_a_cancel_before_a_business_update_does_not_deadlock(engine, second_engine):
    """A handler locks its rows, then (at its commit) its job; so must a request."""
    with Session(engine) as setup, setup.begin():
        job_id = add_job(setup, "running")
        setup.add(Order(id=1, org_id=1))
    note = text("UPDATE shop_order SET note = :note WHERE id = 1")
    errors: list[BaseException] = []

    def request() -> None:
        try:
            with Session(second_engine) as session, session.begin():
                cancel_job(session, job_id)
                session.execute(note, {"note": "request"})
        except Exception as error:
            errors.append(error)

    with engine.connect() as handler:
        handler.execute(note, {"note": "handler"})
        web = threading.Thread(target=request)
        web.start()
        wait_for_lock(engine)
        handler.execute(HOLD.where(Job.id == job_id))
        handler.commit()
        web.join()
    assert errors == []
    with Session(engine) as look:
        assert read(look, job_id).cancel_requested_at == LATER


def test_verbs_in_opposite_orders_do_not_deadlock(engine, second_engine):
    """The rows are locked in the order of their ids, whatever was called first."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(2)

    def cancel_all(own: Engine, ids: list[UUID]) -> None:
        try:
            with Session(own) as session:
                for job_id in ids:
                    cancel_job(session, job_id)
                barrier.wait()
                session.commit()
        except Exception as error:
            errors.append(error)

    for _ in range(10):
        with engine.begin() as setup:
            ids = [add_job(setup, "running") for _ in range(20)]
        pair = [
            threading.Thread(target=cancel_all, args=(engine, ids)),
            threading.Thread(target=cancel_all, args=(second_engine, ids[::-1])),
        ]
        for thread in pair:
            thread.start()
        for thread in pair:
            thread.join()
    assert errors == []


@pytest.mark.covers("C44")
@pytest.mark.parametrize(("verb", "state", "error"), VERBS)
def test_who_is_second_learns_it_from_the_commit_and_writes_nothing(
    engine, second_engine, verb, state, error
):
    with engine.begin() as setup:
        job_id = add_job(setup, state)
    now = {
        "ready": {"state": "dead", "finished_at": NOW},
        "dead": {"state": "ready", "finished_at": None},
    }
    with Session(engine) as session:
        session.add(Order(id=1, org_id=1))
        verb(session, job_id)
        with second_engine.begin() as other:
            other.execute(update(Job).where(Job.id == job_id).values(now[state]))

        with pytest.raises(error) as refused:
            session.commit()

        assert refused.value.state == now[state]["state"]
    with Session(second_engine) as look:
        assert look.get(Order, 1) is None
        assert read(look, job_id).state == now[state]["state"]


@pytest.mark.parametrize(("verb", "state", "error"), VERBS)
def test_a_verb_of_a_savepoint_that_rolls_back_never_happened(
    session, verb, state, error
):
    job_id = add_job(session, state)
    with session.begin_nested() as savepoint:
        verb(session, job_id)
        savepoint.rollback()
    session.commit()
    assert read(session, job_id).state == state


def test_a_job_that_is_not_written_yet_can_be_cancelled(engine):
    with Session(engine) as session:
        queued = enqueue(session, charge, Charge(7, 1))
        cancel_job(session, queued.id)
        session.commit()
        assert read(session, queued.id).state == "cancelled"


def test_verbs_on_one_job_act_in_the_order_of_the_calls(session):
    job_id = add_job(session, "dead", fence=1)
    retry_job(session, job_id)
    cancel_job(session, job_id)
    retry_job(session, job_id)
    session.commit()
    job = read(session, job_id)
    assert (job.state, job.fence) == ("ready", 3)


def test_a_refused_verb_does_not_take_the_rest_with_it(engine, second_engine):
    """After write_jobs() raised, the transaction is usable and all else is written."""
    with engine.begin() as setup:
        late, fine = add_job(setup), add_job(setup)
    with Session(engine) as session:
        cancel_job(session, late)
        cancel_job(session, fine)
        queued = enqueue(session, charge, Charge(7, 1))
        with second_engine.begin() as other:
            gone = {"state": "dead", "finished_at": NOW}
            other.execute(update(Job).where(Job.id == late).values(gone))

        with pytest.raises(JobNotCancellableError):
            write_jobs(session)
        session.commit()

        assert read(session, fine).state == "cancelled"
        assert read(session, queued.id).state == "ready"


def test_workers_are_woken_after_a_retry_and_a_resume(engine, pg_url):
    with engine.begin() as setup:
        job_id = add_job(setup, "dead", queue="billing")
    with psycopg.connect(conninfo(pg_url), autocommit=True) as listener:
        listener.execute(f'LISTEN "{channel()}"')
        with Session(engine) as session:
            retry_job(session, job_id)
            session.commit()
            assert heard(listener, "billing")

            pause_queue(session, "mail")
            session.commit()
            resume_queue(session, "mail")
            session.commit()
            assert heard(listener, "mail")


def heard(listener: psycopg.Connection[Any], queue: str) -> bool:
    """Wait for a hint about *queue*; others, and repeated ones, may come before it."""
    hints = listener.notifies(timeout=10)
    found = any(queue in hint.payload.split(",") for hint in hints)
    hints.close()  # it holds the connection
    return found


# --- looking up ----------------------------------------------------------------------


def test_find_job_looks_up_by_what_the_input_says(session):
    add_job(session, name="shop.charge", tenant="8", key="charge:42")
    add_job(session, name="shop.other", tenant="7", key="charge:42")
    mine = add_job(session, name="shop.charge", tenant="7", key="charge:42")

    found = find_job(session, charge, Charge(org=7, order=42))

    assert found is not None
    assert found.id == mine
    assert find_job(session, charge, Charge(org=7, order=43)) is None


def test_find_job_sees_what_a_plain_session_has_pending(engine):
    with Session(engine) as session:
        queued = enqueue(session, charge, Charge(7, 1))
        found = find_job(session, charge, Charge(7, 1))
        assert found is not None
        assert found.id == queued.id


def test_find_job_shows_what_the_verbs_did(session):
    job_id = add_job(session, name="shop.charge", tenant="7", key="charge:1")
    first = find_job(session, charge, Charge(7, 1))
    cancel_job(session, job_id)

    again = find_job(session, charge, Charge(7, 1))

    assert again is first
    assert again is not None
    assert again.state == "cancelled"


def test_job_output_is_typed_as_declared(session):
    job_id = add_job(session, "succeeded", name="shop.charge", output={"number": "A1"})
    assert job_output(session, charge, job_id) == Receipt("A1")


@pytest.mark.parametrize("state", sorted(set(STATES) - {"succeeded"}))
def test_job_output_is_none_unless_the_job_succeeded(session, state):
    """What an earlier run left behind is not this run's output."""
    job_id = add_job(session, state, name="shop.charge", output={"number": "A1"})
    assert job_output(session, charge, job_id) is None


def test_job_output_is_none_where_there_is_none(session):
    job_id = add_job(session, "succeeded", name="shop.charge")
    assert job_output(session, charge, job_id) is None
    assert job_output(session, charge, NOBODY) is None


def test_job_output_of_another_kind_of_job_is_refused(session):
    job_id = add_job(session, "succeeded", name="shop.other", output={"number": "A1"})
    with pytest.raises(PayloadError, match=r"shop\.other"):
        job_output(session, charge, job_id)


def test_job_output_that_does_not_fit_the_type_says_where(session):
    job_id = add_job(session, "succeeded", name="shop.charge", output={"number": 1})
    with pytest.raises(PayloadError, match=r"output\.number"):
        job_output(session, charge, job_id)


# --- queues --------------------------------------------------------------------------


def test_a_queue_is_paused_and_resumed(session):
    assert pause_queue(session, "billing")
    session.commit()
    assert session.get_one(QueueRow, "billing").paused_at == LATER

    assert resume_queue(session, "billing")
    session.commit()
    assert session.get_one(QueueRow, "billing").paused_at is None


def test_pausing_twice_keeps_the_first_time_and_says_so(session):
    pause_queue(session, "billing")
    clock.advance(timedelta(minutes=5))

    assert not pause_queue(session, "billing")
    assert session.get_one(QueueRow, "billing").paused_at == LATER


def test_resuming_a_queue_that_was_not_paused_says_so(session):
    assert not resume_queue(session, "billing")


@pytest.mark.needs("skip_locked")
def test_two_transactions_may_pause_the_same_new_queue(engine, second_engine):
    """The row of a queue is made when it is first paused: no UniqueViolation."""
    answers: list[bool] = []

    def pause() -> None:
        with Session(second_engine) as session, session.begin():
            answers.append(pause_queue(session, "billing"))

    with Session(engine) as first:
        assert pause_queue(first, "billing")
        second = threading.Thread(target=pause)
        second.start()
        wait_for_lock(engine)
        first.commit()
        second.join()
    assert answers == [False]


def test_a_queue_name_that_no_job_can_have_is_refused(session):
    with pytest.raises(InvalidOptionError):
        pause_queue(session, " billing")


def test_a_verb_is_two_or_three_statements(engine):
    """One look, one guarded write, and the children that may be there."""
    seen: list[str] = []
    with Session(engine) as session:
        job_id = add_job(session)
        session.commit()
        event.listen(
            engine, "before_cursor_execute", lambda c, k, sql, *a: seen.append(sql)
        )
        cancel_job(session, job_id)
        session.commit()
    verbs = [sql.split()[0] for sql in seen if sql != "BEGIN IMMEDIATE"]
    assert verbs == ["SELECT", "UPDATE", "UPDATE"]
