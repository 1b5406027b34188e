"""Changing many jobs, and what a retry keeps of what was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, event, func, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import JobSession, clock, discard_job, inspect, retry_job
from sqla_jobs.exc import JobNotFoundError, JobNotRetryableError, PayloadError
from sqla_jobs.models import Attempt, Job, JobBody, JobOutput
from sqla_jobs.queue.bulk import change_jobs
from sqla_jobs.queue.changes import Change
from sqla_jobs.queue.selection import EVERY, JobFilter
from sqla_jobs.states import FINISHED, JobState
from tests.support.enqueuing import Work, work
from tests.support.rows import NOW, add_attempt, add_job

pytestmark = pytest.mark.conformance

LATER = NOW + timedelta(hours=1)
DEAD = JobFilter(state="dead")


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    clock.freeze(LATER)
    yield
    clock.thaw()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with JobSession(engine) as session:
        yield session


def states(session: Session) -> dict[str, int]:
    rows = session.execute(select(Job.state, func.count()).group_by(Job.state))
    return dict(rows.all())


def attempts(session: Session, job_id: object) -> list[tuple[int, int, str]]:
    rows = session.execute(
        select(Attempt.fence, Attempt.number, Attempt.outcome)
        .where(Attempt.job_id == job_id)
        .order_by(Attempt.fence)
    )
    return [tuple(row) for row in rows]


# --- in bulk -------------------------------------------------------------------------


@pytest.mark.parametrize("change", Change)
def test_a_change_meets_the_jobs_it_can_be_made_to_and_no_others(session, change):
    for state in JobState:
        add_job(session, state, key=state)
    session.commit()

    done = change_jobs(session, change, EVERY)
    session.commit()

    possible = FINISHED if change is not Change.CANCEL else set(JobState) - FINISHED
    assert (done.count, done.left, done.next) == (3, 0, None)
    after = dict(session.execute(select(Job.key, Job.state)).all())
    for state in JobState:
        if state not in possible:
            assert after[state] == state
        elif change is Change.DISCARD:
            assert state not in after
        elif change is Change.RETRY:
            assert after[state] == "ready"
        else:
            assert after[state] == ("running" if state == "running" else "cancelled")
    assert done.stopping == (change is Change.CANCEL)


def test_batches_follow_each_other_by_id_and_a_second_round_finds_nothing(session):
    for i in range(7):
        add_job(session, "dead", queue="a" if i % 2 == 0 else "b")
    session.commit()
    counts, after = [], None
    while True:
        done = change_jobs(
            session, Change.RETRY, JobFilter(queue="a"), after=after, limit=3
        )
        session.commit()
        counts.append(done.count)
        after = done.next
        if after is None:
            break
    assert counts == [3, 1]
    assert states(session) == {"ready": 4, "dead": 3}
    assert change_jobs(session, Change.RETRY, JobFilter(queue="a")).count == 0


def test_an_asked_job_is_not_asked_again(session):
    """Else a second run would never be told apart from the first."""
    add_job(session, "running")
    assert change_jobs(session, Change.CANCEL, EVERY, reason="one").stopping == 1
    assert change_jobs(session, Change.CANCEL, EVERY, reason="two").count == 0
    assert session.scalars(select(Job.cancel_reason)).one() == "one"


def test_what_belongs_to_discarded_jobs_goes_with_them(session):
    for _ in range(3):
        job_id = add_job(session, "dead", output={"n": 1})
        add_attempt(session, job_id, 1)
    change_jobs(session, Change.DISCARD, DEAD, limit=2)
    for table in (Job, JobBody, JobOutput, Attempt):
        assert session.scalar(select(func.count()).select_from(table)) == 1


def test_it_belongs_to_the_callers_transaction(session):
    add_job(session, "dead")
    session.commit()
    change_jobs(session, Change.RETRY, DEAD)
    session.rollback()
    assert states(session) == {"dead": 1}


def test_a_reason_that_cannot_be_stored_changes_nothing(session):
    add_job(session)
    with pytest.raises(PayloadError):
        change_jobs(session, Change.CANCEL, EVERY, reason="x" * 1001)
    assert states(session) == {"ready": 1}


@pytest.mark.needs("skip_locked")
def test_what_others_hold_is_stepped_over_and_told(engine, second_engine):
    """No operator waits for a transaction, and none waits for the operator's batch."""
    with engine.begin() as setup:
        held, free = add_job(setup, "dead"), add_job(setup, "dead")
    with second_engine.connect() as holder, Session(engine) as session:
        holder.execute(update(Job).where(Job.id == held).values(priority=1))
        session.execute(text("SET lock_timeout = '1ms'"))
        done = change_jobs(session, Change.RETRY, DEAD)
        session.commit()
        assert (done.count, done.left) == (1, 1)
        assert session.get_one(Job, free).state == "ready"
        assert session.get_one(Job, held).state == "dead"


@pytest.mark.needs("skip_locked")
def test_the_filter_is_judged_again_on_the_locked_row(engine, second_engine):
    """A worker took the job between the look and the lock: it is left to the worker."""
    with engine.begin() as setup:
        job_id = add_job(setup, "ready")

    def taken(connection, cursor, sql, *rest):
        if "FOR UPDATE" in sql:
            with second_engine.begin() as worker:
                row = {"state": "running", "worker_id": job_id, "fence": 1}
                worker.execute(update(Job).where(Job.id == job_id).values(row))

    event.listen(engine, "before_cursor_execute", taken)
    with Session(engine) as session:
        done = change_jobs(session, Change.CANCEL, JobFilter(state="ready"))
        session.commit()
    event.remove(engine, "before_cursor_execute", taken)
    assert (done.count, done.left) == (0, 1)
    with Session(engine) as session:
        assert session.get_one(Job, job_id).cancel_requested_at is None


@pytest.mark.needs("notify")
def test_workers_are_woken_once_for_a_batch(engine, second_engine, monkeypatch):
    from sqla_jobs.queue import wakeup

    woken: list[set[str]] = []
    send = wakeup.committing

    def note(connection, queues):
        woken.append(set(queues))
        send(connection, queues)

    monkeypatch.setattr(wakeup, "committing", note)
    with Session(engine) as session:
        for queue in ("a", "a", "b"):
            add_job(session, "dead", queue=queue)
        session.commit()
        woken.clear()
        change_jobs(session, Change.RETRY, DEAD)
        session.commit()
    assert {"a", "b"} in woken


@pytest.mark.covers("C46")
@pytest.mark.needs("skip_locked")
@pytest.mark.timeout(90)
def test_batches_single_verbs_and_enqueues_do_not_deadlock(engine):
    """All of them lock the same few jobs, in one order; nobody is ended for it."""
    with engine.begin() as setup:
        ids = [add_job(setup, "dead", key=f"k{i}", name="shop.work") for i in range(5)]
    errors: list[BaseException] = []
    start = threading.Barrier(6)

    def each_turn(act) -> None:
        start.wait()
        for turn in range(60):
            try:
                with JobSession(engine) as session, session.begin():
                    act(session, turn)
            except (JobNotRetryableError, JobNotFoundError):
                pass
            except BaseException as error:
                errors.append(error)

    def bulk(change):
        return lambda session, turn: change_jobs(session, change, EVERY)

    def single(session, turn):
        for job_id in ids[turn % 5 :] + ids[: turn % 5]:
            retry_job(session, job_id)

    def rerun(session, turn):
        keys = [f"k{(turn + i) % 5}" for i in range(5)]
        session.enqueue_many(work, [Work(key) for key in keys], on_duplicate="rerun")

    def finish(session, turn):
        row = {"state": "dead", "finished_at": NOW}
        waiting = (
            select(Job.id)
            .where(Job.state == "ready")
            .order_by(Job.id)
            .with_for_update(skip_locked=True)
        )
        found = session.scalars(waiting).all()
        session.execute(update(Job).where(Job.id.in_(found)).values(row))

    acts = (bulk(Change.RETRY), bulk(Change.CANCEL), bulk(Change.RETRY))
    threads = [
        threading.Thread(target=each_turn, args=[act])
        for act in (*acts, single, rerun, finish)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# --- filters -------------------------------------------------------------------------


@pytest.mark.parametrize("nasty", ["%", "_", "\\", "'", "a%", "A", "*", "[a]", "ä"])
@pytest.mark.parametrize("field", ["search", "key", "key_prefix", "error"])
def test_every_text_is_literal(session, field, nasty):
    """Wildcards are characters, and capitals count, on every database."""
    others = ["x", "b%c", "bbc", "\\\\".replace(nasty, ""), nasty.swapcase() + "b"]
    for i, value in enumerate(others):
        if nasty in value:
            continue
        other = add_job(session, "dead", key=f"{value}|{i}", name="n")
        add_attempt(session, other, 1, error=value, error_type="E")
    mine = add_job(session, "dead", key=nasty, name="n")
    add_attempt(session, mine, 1, error=f"it said {nasty} twice", error_type="E")
    page = inspect.jobs(session, filters=JobFilter(**{field: nasty}))
    assert [job.id for job in page.items] == [mine]


def test_a_count_is_bounded_and_exact_below(session, monkeypatch):
    for _ in range(6):
        add_job(session, "dead")
    assert inspect.count(session, DEAD) == 6
    assert inspect.count(session) == 6
    monkeypatch.setattr("sqla_jobs.inspect.listing.COUNT_LIMIT", 4)
    assert inspect.count(session, DEAD) == 4


# --- a retry keeps what was -----------------------------------------------------------


@pytest.mark.parametrize("how", ["verb", "bulk"])
def test_a_retry_of_a_success_records_it(session, how):
    """The job's row alone told of it, and forgets it when it runs again."""
    job_id = add_job(session, "succeeded", attempt=2, fence=5)
    add_attempt(session, job_id, 1, fence=4)
    if how == "verb":
        retry_job(session, job_id)
        session.commit()
    else:
        change_jobs(session, Change.RETRY, JobFilter(state="succeeded"))

    assert attempts(session, job_id) == [(4, 1, "failed"), (5, 2, "succeeded")]
    recorded = session.get_one(Attempt, (job_id, 5))
    assert recorded.started_at == NOW
    assert recorded.ended_at == NOW + timedelta(seconds=1)
    trace = inspect.job(session, job_id)
    assert [a.outcome for a in trace.attempts] == ["failed", "succeeded"]


@pytest.mark.parametrize("state", ["dead", "cancelled"])
def test_a_retry_of_a_failure_adds_no_attempt(session, state):
    job_id = add_job(session, state)
    retry_job(session, job_id)
    session.commit()
    assert attempts(session, job_id) == []


def test_a_success_that_is_recorded_already_is_not_recorded_twice(session):
    """One that ended with a rerun has its record."""
    job_id = add_job(session, "succeeded", attempt=1, fence=1)
    add_attempt(session, job_id, 1, outcome="succeeded")
    retry_job(session, job_id)
    session.commit()
    assert attempts(session, job_id) == [(1, 1, "succeeded")]


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_a_rerun_of_a_finished_job_records_its_success(engine, session, state):
    job_id = add_job(session, state, key="k", attempt=2, fence=5)
    session.commit()
    with sessionmaker(engine, class_=JobSession).begin() as enqueuer:
        enqueuer.enqueue(work, Work("k", 2), on_duplicate="rerun")
    recorded = [(5, 2, "succeeded")] if state == "succeeded" else []
    assert attempts(session, job_id) == recorded
    session.expire_all()
    job = session.get_one(Job, job_id)
    assert (job.state, job.attempt, job.fence) == ("ready", 0, 6)


# --- a dead letter and its key ---------------------------------------------------------


@pytest.mark.covers("C37", "T24")
def test_a_dead_letter_keeps_its_key_so_that_no_twin_can_come(engine, session):
    """A duplicate meets the dead job itself; its retry is then one run, no conflict."""
    job_id = add_job(session, "dead", key="k", attempt=3, max_attempts=3, fence=7)
    session.commit()
    with sessionmaker(engine, class_=JobSession).begin() as enqueuer:
        kept = enqueuer.enqueue(work, Work("k", 2))
    assert (kept.id, kept.outcome, kept.state) == (job_id, "kept", "dead")

    retry_job(session, job_id)
    session.commit()

    session.expire_all()
    job = session.get_one(Job, job_id)
    assert (job.state, job.attempt, job.max_attempts, job.fence) == ("ready", 3, 4, 8)
    assert states(session) == {"ready": 1}


@pytest.mark.covers("C37", "T24")
def test_a_discarded_dead_letter_cannot_come_back_beside_its_successor(engine, session):
    job_id = add_job(session, "dead", key="k")
    session.commit()
    discard_job(session, job_id)
    session.commit()
    with sessionmaker(engine, class_=JobSession).begin() as enqueuer:
        created = enqueuer.enqueue(work, Work("k", 2))
    assert created.outcome == "created"

    with pytest.raises(JobNotFoundError):
        retry_job(session, job_id)
    assert states(session) == {"ready": 1}
