"""What an enqueue does to a job that exists: the table of on_duplicate, row by row."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session as PlainSession

from sqla_jobs import NO_TENANT, Jobs, enqueue, write_jobs
from sqla_jobs.dialects import dialect_named
from sqla_jobs.exc import (
    DuplicateJobError,
    EnqueueConflictError,
    JobIdTakenError,
    NotWrittenError,
)
from sqla_jobs.models import Job, JobBody, JobOutput
from sqla_jobs.queue.outcome import Retry, Snooze, Succeeded
from sqla_jobs.states import FINISHED
from tests.support.enqueuing import Work, bodies, keys, orders, other, stored, work
from tests.support.fleet import Fleet
from tests.support.rows import NOW, add_job
from tests.support.shop import Order

pytestmark = pytest.mark.conformance

STATES = ["ready", "retrying", "waiting", "running", "succeeded", "dead", "cancelled"]
OWNER = UUID(int=77)
LATER = NOW + timedelta(days=400)
SOONER = NOW - timedelta(days=400)


@pytest.fixture
def existing(engine):
    """Store the job ``k`` in a state, as its life would have left it."""

    def store(state: str) -> UUID:
        values = {"fence": 3, "attempt": 2, "attempted_at": NOW, "interruptions": 1}
        if state == "ready":
            values = {}
        if state == "running":
            values |= {"worker_id": OWNER}
        if state in FINISHED:
            values |= {"finished_at": NOW, "output": {"done": True}}
        if state == "cancelled":
            values |= {"cancel_requested_at": NOW, "cancel_reason": "not wanted"}
        with engine.begin() as connection:
            return add_job(
                connection,
                "ready" if state == "retrying" else state,
                key="k",
                tenant=work.tenant_of(Work("k")),
                input={"key": "k", "n": 1},
                **values,
            )

    return store


def facts(job):
    columns = [c.key for c in Job.__table__.columns]
    return {name: getattr(job, name) for name in columns} | {"input": job.input}


def changes(before, after):
    return {name: after[name] for name in after if after[name] != before[name]}


def enqueue_again(engine, mode, **options):
    """Enqueue ``k`` with another input; return what changed, and the handle."""
    before = facts(stored(engine, "k"))
    with PlainSession(engine) as session:
        handle = enqueue(
            session, work, Work("k", 2), on_duplicate=mode, priority=2, **options
        )
        session.commit()
    return changes(before, facts(stored(engine, "k"))), handle


@pytest.mark.covers("C15")
@pytest.mark.parametrize("state", STATES)
def test_keep_changes_nothing(engine, existing, state):
    job_id = existing(state)
    changed, handle = enqueue_again(engine, "keep", run_at=SOONER)
    assert changed == {}
    state = "ready" if state == "retrying" else state
    assert (handle.id, handle.outcome, handle.state) == (job_id, "kept", state)


@pytest.mark.covers("C15")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("by", ["commit", "write_jobs"])
def test_error_raises_in_every_state_and_changes_nothing(engine, existing, state, by):
    job_id = existing(state)
    before = facts(stored(engine, "k"))
    with PlainSession(engine) as session:
        session.add(Order(id=1, org_id=1))
        handle = enqueue(session, work, Work("k", 2), on_duplicate="error")
        enqueue(session, work, Work("fine"))
        with pytest.raises(DuplicateJobError) as caught:
            session.commit() if by == "commit" else write_jobs(session)
        assert caught.value.job_id == job_id
        assert caught.value.state == ("ready" if state == "retrying" else state)
        if by == "write_jobs":
            session.commit()
    with pytest.raises(NotWrittenError):
        _ = handle.outcome
    assert changes(before, facts(stored(engine, "k"))) == {}
    usable = by == "write_jobs"
    assert keys(engine) == (["fine", "k"] if usable else ["k"])
    assert orders(engine) == ([1] if usable else [])


@pytest.mark.covers("C15")
def test_replace_of_a_job_never_claimed_gives_input_priority_and_run_at(
    engine, existing
):
    job_id = existing("ready")
    changed, handle = enqueue_again(engine, "replace", run_at=LATER)
    assert changed == {
        "input": {"key": "k", "n": 2},
        "priority": 2,
        "run_at": LATER,
        "max_attempts": work.retry.attempts,
    }
    assert (handle.id, handle.outcome, handle.state) == (job_id, "replaced", "ready")


@pytest.mark.covers("C15", "T22")
@pytest.mark.parametrize("state", [s for s in STATES if s != "ready"])
def test_replace_keeps_a_job_that_was_ever_claimed(engine, existing, state):
    existing(state)
    changed, handle = enqueue_again(engine, "replace", run_at=LATER)
    assert changed == {}
    assert handle.outcome == "kept"


@pytest.mark.covers("C15")
@pytest.mark.parametrize("state", ["ready", "retrying"])
@pytest.mark.parametrize("run_at", [SOONER, LATER], ids=["sooner", "later"])
def test_rerun_of_a_ready_job_takes_the_newest_input_and_the_sooner_run_at(
    engine, existing, state, run_at
):
    """A debounce that cannot starve: asking again never puts it off."""
    job_id = existing(state)
    changed, handle = enqueue_again(engine, "rerun", run_at=run_at)
    sooner = {"run_at": SOONER} if run_at == SOONER else {}
    assert changed == sooner | {
        "input": {"key": "k", "n": 2},
        "priority": 2,
        "max_attempts": work.retry.attempts,
    }
    assert (handle.id, handle.outcome, handle.state) == (job_id, "rerun", "ready")


@pytest.mark.covers("C15", "T22")
@pytest.mark.parametrize("state", ["running", "waiting"])
def test_rerun_of_an_unfinished_job_only_asks_for_one_more_run(engine, existing, state):
    existing(state)
    changed, handle = enqueue_again(engine, "rerun", run_at=LATER)
    assert changed == {"rerun": True, "rerun_run_at": LATER}
    assert (handle.outcome, handle.state) == ("rerun", state)
    with engine.connect() as connection:
        wanted = connection.scalar(select(JobBody.rerun_input))
    assert wanted == {"key": "k", "n": 2}


def test_the_newest_rerun_of_a_running_job_wins(engine, existing):
    existing("running")
    enqueue_again(engine, "rerun", run_at=LATER)
    with PlainSession(engine) as session, session.begin():
        enqueue(session, work, Work("k", 3), on_duplicate="rerun", run_at=SOONER)
    job = stored(engine, "k")
    assert (job.rerun, job.rerun_run_at, job.input["n"]) == (True, SOONER, 1)
    with engine.connect() as connection:
        assert connection.scalar(select(JobBody.rerun_input))["n"] == 3


@pytest.mark.covers("C15")
@pytest.mark.parametrize("state", sorted(FINISHED))
def test_rerun_of_a_finished_job_begins_a_new_life(engine, existing, state):
    job_id = existing(state)
    changed, handle = enqueue_again(engine, "rerun", run_at=LATER)
    nothing = ["attempted_at", "finished_at"]
    if state == "cancelled":
        nothing += ["cancel_requested_at", "cancel_reason"]
    assert changed == dict.fromkeys(nothing) | {
        "state": "ready",
        "attempt": 0,
        "interruptions": 0,
        "fence": 4,
        "input": {"key": "k", "n": 2},
        "priority": 2,
        "run_at": LATER,
        "max_attempts": work.retry.attempts,
    }
    assert (handle.id, handle.outcome, handle.state) == (job_id, "rerun", "ready")
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(JobOutput)) == 0


@pytest.mark.parametrize("state", STATES)
def test_keeping_a_job_that_will_not_run_is_logged(engine, existing, caplog, state):
    existing(state)
    with caplog.at_level(logging.WARNING, "sqla_jobs.enqueue"):
        enqueue_again(engine, "keep")
    assert ("will not run" in caplog.text) == (state in {"dead", "cancelled"})


def test_the_declarations_mode_is_the_default(Session, second_engine):
    again = Jobs().declare(
        work.name,
        input=Work,
        output=int,
        idempotency_key=lambda i: i.key,
        tenant=NO_TENANT,
        on_duplicate="rerun",
    )
    with Session.begin() as session:
        session.enqueue(work, Work("k"))
    with Session.begin() as session:
        handle = session.enqueue(again, Work("k", 2))
    assert handle.outcome == "rerun"
    assert stored(second_engine, "k").input["n"] == 2


# --- merged in one transaction ---------------------------------------------------------


def merged(session, *calls):
    return [
        enqueue(session, work, Work("k", n), on_duplicate=mode)
        for n, mode in enumerate(calls, 1)
    ]


@pytest.mark.parametrize(
    ("calls", "outcomes", "n"),
    [
        (["keep", "keep", "keep"], ["created", "kept", "kept"], 1),
        (["keep", "replace"], ["created", "replaced"], 2),
        (["replace", "keep"], ["created", "kept"], 2),
        (["keep", "rerun", "keep"], ["created", "rerun", "kept"], 3),
        (["rerun", "rerun"], ["created", "rerun"], 2),
        (["error", "keep"], ["created", "kept"], 2),
    ],
    ids=str,
)
def test_calls_for_one_new_key_are_merged(Session, second_engine, calls, outcomes, n):
    """The last input wins; where all keep, the first is what they keep."""
    with Session.begin() as session:
        handles = merged(session, *calls)
    assert [h.outcome for h in handles] == outcomes
    assert len({h.id for h in handles}) == 1
    assert stored(second_engine, "k").input["n"] == n
    assert bodies(second_engine) == 1


@pytest.mark.parametrize(
    ("calls", "outcomes", "n"),
    [
        (["keep", "keep"], ["kept", "kept"], 0),
        (["keep", "replace"], ["kept", "replaced"], 2),
        (["replace", "keep"], ["replaced", "kept"], 2),
        (["replace", "rerun"], ["rerun", "rerun"], 2),
        (["rerun", "keep", "replace"], ["rerun", "kept", "rerun"], 3),
    ],
    ids=str,
)
def test_calls_for_one_existing_key_are_merged(
    Session, second_engine, calls, outcomes, n
):
    """The strongest mode decides."""
    with Session.begin() as session:
        existing = session.enqueue(work, Work("k", 0))
    with Session.begin() as session:
        handles = merged(session, *calls)
    assert [h.outcome for h in handles] == outcomes
    assert {h.id for h in handles} == {existing.id}
    assert stored(second_engine, "k").input["n"] == n


@pytest.mark.parametrize("calls", [["keep", "error"], ["error", "error"]], ids=str)
def test_a_second_call_in_mode_error_is_refused(Session, second_engine, calls):
    with Session() as session:
        merged(session, *calls)
        with pytest.raises(DuplicateJobError):
            session.commit()
    assert keys(second_engine) == []


@pytest.mark.parametrize(
    ("calls", "n"),
    [
        (["keep", "error"], 1),
        (["error", "error"], 1),
        (["keep", "replace", "error"], 2),
    ],
    ids=str,
)
def test_a_refused_call_never_gives_its_input(Session, second_engine, calls, n):
    with Session() as session:
        *fine, refused = merged(session, *calls)
        with pytest.raises(DuplicateJobError):
            session.write_jobs()
        session.commit()
    assert fine[0].outcome == "created"
    with pytest.raises(NotWrittenError):
        _ = refused.outcome
    assert stored(second_engine, "k").input["n"] == n


@pytest.mark.parametrize("calls", [["rerun", "error"], ["error", "rerun"]], ids=str)
def test_a_rerun_beside_a_refused_call_still_asks_for_its_run(engine, existing, calls):
    existing("running")
    with PlainSession(engine) as session:
        handles = merged(session, *calls)
        with pytest.raises(DuplicateJobError):
            write_jobs(session)
        session.commit()
    assert handles[calls.index("rerun")].outcome == "rerun"
    assert stored(engine, "k").rerun is True
    with engine.connect() as connection:
        wanted = connection.scalar(select(JobBody.rerun_input))
    assert wanted["n"] == 1 + calls.index("rerun")


def test_writes_of_one_transaction_see_each_other(Session, second_engine):
    """write_jobs() ends a group; what comes after it meets an existing job."""
    with Session.begin() as session:
        first = session.enqueue(work, Work("k", 1))
        session.write_jobs()
        second = session.enqueue(work, Work("k", 2), on_duplicate="replace")
        session.write_jobs()
        third = session.enqueue(work, Work("k", 3))
    assert [h.outcome for h in (first, second, third)] == [
        "created",
        "replaced",
        "kept",
    ]
    assert {h.id for h in (first, second, third)} == {first.id}
    assert stored(second_engine, "k").input["n"] == 2


def test_handles_tell_what_is_known(Session):
    with Session.begin() as session:
        existing = session.enqueue(work, Work("k"))
    with Session() as session:
        handle = session.enqueue(work, Work("k"))
        new_id = handle.id
        assert new_id != existing.id
        for name in ("outcome", "state"):
            with pytest.raises(NotWrittenError, match=name):
                getattr(handle, name)
        session.write_jobs()
        assert (handle.id, handle.state) == (existing.id, "ready")
        session.rollback()
        assert handle.id == new_id
        with pytest.raises(NotWrittenError):
            _ = handle.outcome
    assert (handle.name, handle.key) == ("shop.work", "k")


def test_jobs_of_other_names_and_tenants_are_no_duplicates(Session, second_engine):
    with Session.begin() as session:
        handles = [
            session.enqueue(work, Work("k")),
            session.enqueue(other, Work("k", 1)),
            session.enqueue(other, Work("k", 2)),
        ]
    assert [h.outcome for h in handles] == ["created"] * 3
    assert keys(second_engine) == ["k"] * 3


def test_an_id_that_belongs_to_another_job_is_a_collision(Session, second_engine):
    with Session.begin() as session:
        taken = session.enqueue(work, Work("a"))
    with Session() as session:
        handle = session.enqueue(work, Work("b"))
        handle._id = handle._new_id = taken.id
        session.enqueue(work, Work("c"))
        with pytest.raises(JobIdTakenError):
            session.write_jobs()
        with pytest.raises(JobIdTakenError):
            session.commit()
    assert keys(second_engine) == ["a"]


@pytest.mark.needs("skip_locked")
def test_a_duplicate_that_is_gone_when_looked_at_is_inserted_after_all(
    Session, second_engine, monkeypatch
):
    """Retention deletes it between the INSERT and the look."""
    with Session.begin() as session:
        session.enqueue(work, Work("k", 1))
    dialect = type(dialect_named(second_engine.dialect))
    look = dialect.find_existing

    def deleted_first(self, connection, jobs):
        with second_engine.begin() as elsewhere:
            elsewhere.execute(text("DELETE FROM sqla_job_body"))
            elsewhere.execute(text("DELETE FROM sqla_job"))
        return look(self, connection, jobs)

    monkeypatch.setattr(dialect, "find_existing", deleted_first)
    with Session.begin() as session:
        handle = session.enqueue(work, Work("k", 2))
    assert handle.outcome == "created"
    assert stored(second_engine, "k").input["n"] == 2


def test_a_duplicate_that_is_gone_each_time_fails_the_transaction(
    Session, second_engine, monkeypatch
):
    """Not even a swallowed error may lose the other jobs."""
    with Session.begin() as session:
        session.enqueue(work, Work("k"))
    dialect = type(dialect_named(second_engine.dialect))
    monkeypatch.setattr(dialect, "find_existing", lambda *args: [])
    with Session() as session:
        session.enqueue(work, Work("a"))
        session.enqueue(work, Work("k"))
        with pytest.raises(EnqueueConflictError):
            session.write_jobs()
        with pytest.raises(EnqueueConflictError):
            session.commit()
    assert keys(second_engine) == ["k"]


@pytest.mark.covers("C15")
def test_a_retry_of_the_job_itself_never_meets_its_own_key(Session, second_engine):
    """Three failures, a snooze and a duplicate in every phase: still one job."""
    fleet = Fleet(second_engine)
    worker = fleet.start()
    with Session.begin() as session:
        first = session.enqueue(work, Work("k"))

    def again(state):
        with Session.begin() as session:
            handle = session.enqueue(work, Work("k"))
        assert (handle.id, handle.outcome, handle.state) == (first.id, "kept", state)

    soon = timedelta(0)
    for outcome in (
        Retry(soon, "ValueError", "1"),
        Retry(soon, "ValueError", "2"),
        Snooze(soon),
        Succeeded(None),
    ):
        again("ready")
        claimed = fleet.claim_one(worker)
        again("running")
        assert fleet.settle(worker, (claimed, outcome)) == {claimed.id}
    again("succeeded")
    assert keys(second_engine) == ["k"]
