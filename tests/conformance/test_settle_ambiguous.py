"""T09: the answer to a settle is lost; afterwards everybody agrees on what happened."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sqla_jobs import JobSession
from sqla_jobs.queue.claim import Claim
from sqla_jobs.queue.control import retry_job
from sqla_jobs.queue.fence import guard
from sqla_jobs.queue.outcome import Dead, Interrupted, Retry, Snooze, Succeeded
from sqla_jobs.queue.settle import Verdict
from tests.support.fleet import Fleet
from tests.support.proxy import Proxy, proxied
from tests.support.rows import add_job
from tests.support.shop import Effect
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.needs("server"),
    pytest.mark.covers("T09", "C107"),
]

NOT_YET = timedelta(hours=1)
AT_ONCE = timedelta(0)


@pytest.fixture
def fleet(engine) -> Fleet:
    """Workers whose connections hold."""
    return Fleet(engine)


@pytest.fixture
def proxy(pg_url) -> Iterator[Proxy]:
    with proxied(pg_url) as proxy:
        yield proxy


@pytest.fixture
def shaky(proxy) -> Iterator[Engine]:
    """An engine whose connections can be cut."""
    engine = create_engine(proxy.url, connect_args={"prepare_threshold": None})
    yield engine
    engine.dispose()


@pytest.fixture
def claimed(fleet) -> tuple[str, Claim]:
    with fleet.engine.begin() as connection:
        add_job(connection)
    worker = fleet.start(timedelta(days=1))
    return worker, fleet.claim_one(worker)


def lose_the_answer(proxy: Proxy, shaky: Engine, worker: str, ended: Claim, outcome):
    """Settle through the proxy; the statement counts, its answer never comes."""
    proxy.cut_after(b"with given as")
    with pytest.raises(OperationalError):
        Fleet(shaky).settle(worker, (ended, outcome))
    assert proxy.cuts == 1


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded('"done"'),
        Dead("ValueError", "no"),
        Retry(NOT_YET, "ValueError", "no"),
        Snooze(NOT_YET),
        Interrupted("shutdown"),
    ],
    ids=lambda o: type(o).__name__,
)
def test_the_fence_tells_that_a_lost_answer_was_a_yes(
    fleet, proxy, shaky, claimed, outcome
):
    worker, job = claimed
    lose_the_answer(proxy, shaky, worker, job, outcome)

    assert fleet.settle(worker, (job, outcome)) == set()
    assert fleet.was_settled(worker, job) is Verdict.ACCEPTED
    assert fleet.job(job.id).fence == job.fence


@pytest.mark.parametrize(
    "outcome",
    [
        Retry(AT_ONCE, "ValueError", "no"),
        Retry(AT_ONCE, "JobTimeoutError", "30 s", timed_out=True),
        Snooze(AT_ONCE),
        Interrupted("shutdown"),
    ],
    ids=["failed", "timed out", "snoozed", "interrupted"],
)
def test_the_history_tells_it_when_the_next_attempt_runs_already(
    fleet, proxy, shaky, claimed, outcome
):
    """No false alarm: the outcome stands, though the fence has moved on."""
    worker, job = claimed
    lose_the_answer(proxy, shaky, worker, job, outcome)
    other = fleet.start()
    assert fleet.claim_one(other).fence == job.fence + 1

    assert fleet.was_settled(worker, job) is Verdict.ACCEPTED


def test_a_new_life_by_a_rerun_is_no_false_alarm_either(fleet, proxy, shaky, claimed):
    worker, job = claimed
    with fleet.engine.begin() as connection:
        connection.exec_driver_sql("update sqla_job set rerun = true")
    lose_the_answer(proxy, shaky, worker, job, Succeeded())

    assert fleet.job(job.id).fence == job.fence + 1
    assert fleet.was_settled(worker, job) is Verdict.ACCEPTED


def test_a_success_that_an_operator_has_run_again_is_no_false_alarm(
    fleet, proxy, shaky, claimed
):
    worker, job = claimed
    lose_the_answer(proxy, shaky, worker, job, Succeeded())
    with Session(fleet.engine) as session, session.begin():
        retry_job(session, fleet.job(job.id).id)

    assert fleet.was_settled(worker, job) is Verdict.ACCEPTED


def test_a_settle_that_never_arrived_can_be_sent_again(fleet, claimed):
    worker, job = claimed
    assert fleet.was_settled(worker, job) is Verdict.BUSY
    assert fleet.settle(worker, (job, Succeeded())) == {job.id}


def test_what_a_rescue_ended_was_not_settled(fleet, claimed):
    worker, job = claimed
    fleet.expire(worker)
    fleet.rescue(delay=AT_ONCE)
    assert fleet.was_settled(worker, job) is Verdict.STALE

    fleet.claim_one(fleet.start())
    assert fleet.was_settled(worker, job) is Verdict.STALE


def test_what_is_gone_was_not_settled(fleet, claimed):
    worker, job = claimed
    with fleet.engine.begin() as connection:
        connection.exec_driver_sql("delete from sqla_job")
    assert fleet.was_settled(worker, job) is Verdict.STALE


@pytest.mark.parametrize("word", [b"with given as", b"COMMIT"])
def test_a_completing_commit_is_whole_or_nothing(fleet, proxy, shaky, claimed, word):
    """Cut after its settle: nothing of it is left. Cut after the COMMIT: all of it."""
    worker, job = claimed
    attempt = fleet.guard(worker, job)
    with JobSession(shaky) as session:
        guard(session, attempt)
        session.add(Effect(name="charged"))
        session.flush()
        attempt.complete('"done"')
        proxy.cut_after(word)
        with pytest.raises(OperationalError):
            session.commit()
    assert proxy.cuts == 1
    committed = word == b"COMMIT"
    verdict = Verdict.ACCEPTED if committed else Verdict.BUSY

    assert attempt.completed == committed
    assert fleet.was_settled(worker, job) is verdict
    with Session(fleet.engine) as session:
        assert len(session.scalars(select(Effect)).all()) == committed
    if not committed:
        # The server notices by itself that nobody is there any more.
        wait_until(lambda: fleet.settle(worker, (job, Succeeded())) == {job.id})


def test_a_claim_whose_answer_is_lost_is_found_by_the_rescue(fleet, proxy, shaky):
    """Its own worker does not know about it: the lease ends, the job runs again."""
    with fleet.engine.begin() as connection:
        job_id = str(add_job(connection))
    worker = fleet.start()
    proxy.cut_after(b"update sqla_job")
    with pytest.raises(OperationalError):
        Fleet(shaky).claim(worker)

    assert fleet.job(job_id).state == "running"
    fleet.expire(worker)
    assert [r.id for r in fleet.rescue(delay=AT_ONCE)] == [job_id]
    again = fleet.claim_one(fleet.start())
    assert (again.attempt, again.fence) == (2, 3)
