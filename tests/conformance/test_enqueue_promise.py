"""The promise, clauses 1 and 6: what an enqueue is, to the word."""

from __future__ import annotations

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session as PlainSession

from sqla_jobs import enqueue
from sqla_jobs.exc import DuplicateJobError, NotWrittenError
from sqla_jobs.models import Job
from tests.support.enqueuing import Work, bodies, keys, orders, other, stored, work
from tests.support.fleet import Fleet
from tests.support.hints import Hints
from tests.support.rows import add_job
from tests.support.shop import Order

pytestmark = pytest.mark.conformance


def test_promise_1_a_committed_enqueue_is_never_lost(Session, second_engine):
    """Once COMMIT has returned, another connection sees the job and its input."""
    for n in range(20):
        with Session() as session:
            session.add(Order(id=n, org_id=1))
            handle = session.enqueue(work, Work(f"{n}", n))
            session.commit()
            assert stored(second_engine, f"{n}").input == {"key": f"{n}", "n": n}
            assert handle.outcome == "created"
    assert bodies(second_engine) == 20


def test_promise_1_a_job_and_its_rows_appear_in_one_instant(Session, second_engine):
    with Session() as session:
        session.add(Order(id=1, org_id=1))
        session.enqueue(work, Work("a"))
        session.flush()
        session.write_jobs()
        assert (orders(second_engine), keys(second_engine)) == ([], [])
        session.commit()
        assert (orders(second_engine), keys(second_engine)) == ([1], ["a"])


@pytest.mark.covers("C08")
def test_promise_1_a_rolled_back_enqueue_never_existed(Session, second_engine):
    """A hundred times, written or not, and in no table."""
    for n in range(100):
        with Session() as session:
            handle = session.enqueue(work, Work(f"{n}"))
            if n % 2:
                session.write_jobs()
            if n % 3:
                session.rollback()
    with pytest.raises(NotWrittenError):
        _ = handle.outcome
    assert keys(second_engine) == []
    assert bodies(second_engine) == 0


@pytest.mark.needs("notify")
def test_promise_1_a_rolled_back_enqueue_never_existed_not_even_as_a_wake_up(
    Session, engine, pg_url
):
    with Hints(pg_url) as hints:
        with Session() as session:
            session.enqueue(work, Work("a"))
            session.write_jobs()
            session.enqueue(other, Work("b"))
            session.rollback()
        assert hints.until_quiet(engine) == []


@pytest.mark.parametrize("state", ["ready", "waiting", "running", "dead", "succeeded"])
@pytest.mark.parametrize("mode", ["keep", "replace", "rerun"])
def test_promise_6_a_duplicate_never_poisons_the_callers_transaction(
    Session, second_engine, state, mode
):
    """Statements before it, between and after it all commit; nothing is rolled back."""
    with second_engine.begin() as connection:
        job_id = add_job(
            connection, state, key="k", name=work.name, tenant=work.tenant_of(Work("k"))
        )
    with Session() as session:
        session.add(Order(id=1, org_id=1))
        session.flush()
        handle = session.enqueue(work, Work("k"), on_duplicate=mode)
        session.write_jobs()
        session.add(Order(id=2, org_id=1))
        session.flush()
        assert session.scalar(select(Job.id)) == job_id
        session.enqueue(work, Work("new"))
        session.commit()
    assert handle.id == job_id
    assert orders(second_engine) == [1, 2]
    assert keys(second_engine) == ["k", "new"]


def test_promise_6_also_in_mode_error_the_transaction_stays_usable(
    Session, second_engine
):
    with Session.begin() as session:
        existing = session.enqueue(work, Work("k"))
    with Session() as session:
        session.add(Order(id=1, org_id=1))
        session.enqueue(work, Work("k"), on_duplicate="error")
        with pytest.raises(DuplicateJobError) as caught:
            session.write_jobs()
        session.add(Order(id=2, org_id=1))
        session.commit()
    assert caught.value.job_id == existing.id
    assert orders(second_engine) == [1, 2]


def test_promise_6_it_always_tells_which_job_exists(Session):
    with Session.begin() as session:
        existing = session.enqueue(work, Work("k"))
    for mode in ("keep", "replace", "rerun"):
        with Session.begin() as session:
            handle = session.enqueue(work, Work("k"), on_duplicate=mode)
        assert (handle.id, handle.state) == (existing.id, "ready")


def test_an_error_of_the_app_is_the_apps_and_takes_its_jobs_with_it(
    engine, second_engine
):
    with PlainSession(engine) as session, session.begin():
        session.add(Order(id=1, org_id=1, note="one"))
    with PlainSession(engine) as session:
        enqueue(session, work, Work("a"))
        session.add(Order(id=2, org_id=1, note="one"))
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        session.execute(text("SELECT 1"))
        session.commit()
    assert keys(second_engine) == []


@pytest.mark.covers("C08")
def test_no_worker_sees_a_job_before_its_transaction_commits(Session, second_engine):
    fleet = Fleet(second_engine)
    worker = fleet.start()
    with Session() as session:
        handle = session.enqueue(work, Work("a"))
        session.write_jobs()
        assert fleet.claim(worker) == []
        assert fleet.next_due() is None
        session.commit()
    assert [c.id for c in fleet.claim(worker)] == [str(handle.id)]


@pytest.mark.covers("C05")
def test_a_handle_is_a_plain_value_whenever_it_is_read(Session):
    """In an after_commit listener, where SQL is refused, and after close()."""
    read = []
    with Session() as session:
        handle = session.enqueue(work, Work("a"))
        event.listen(
            session,
            "after_commit",
            lambda session: read.append((handle.id, handle.outcome, handle.state)),
        )
        session.commit()
    assert read == [(handle.id, "created", "ready")]
    assert (handle.key, handle.name) == ("a", "shop.work")
