"""``drain``: the worker's own semantics, inline, inside a test's transaction."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sqla_jobs import (
    NO_TENANT,
    Discard,
    JobContext,
    Jobs,
    JobSession,
    cancel_job,
    job_output,
    pause_queue,
)
from sqla_jobs.exc import LeaseLostError, PayloadError, RunRefusedError
from sqla_jobs.models import Attempt, Job, JobBody, WorkerRow
from sqla_jobs.testing import drain, rolled_back
from tests.support.shop import Visit
from tests.testing_kit.shop import (
    Broken,
    Gateway,
    Mail,
    Work,
    break_,
    elsewhere,
    entered,
    fan,
    jobs,
    mail,
    mend,
    midway,
    signal,
    stranger,
    use_gateway,
    visit,
)

pytestmark = pytest.mark.each_kind


def enqueue(factory, job, input, **options):
    with factory.begin() as session:
        return session.enqueue(job, input, **options)


def visits(factory) -> list[str]:
    with factory() as session:
        return sorted(session.scalars(select(Visit.name)))


def states(factory) -> dict[str, str]:
    with factory() as session:
        return {job.key: job.state for job in session.scalars(select(Job))}


def test_due_jobs_run_and_complete_with_their_rows(factory):
    queued = enqueue(factory, visit, Work("a", 7))
    enqueue(factory, visit, Work("later"), delay="1h")
    done = drain(factory, jobs)
    assert (done.succeeded, done.attempts, done.dead) == (1, 1, 0)
    assert visits(factory) == ["a"]
    with factory() as session:
        assert job_output(session, visit, queued.id) == 7
        job = session.get_one(Job, queued.id)
        assert (job.state, job.attempt, job.worker_id) == ("succeeded", 1, None)
    assert states(factory)["later"] == "ready"


def test_nothing_of_a_drain_outlives_the_tests_transaction(engine, second_engine):
    with rolled_back(engine) as factory:
        enqueue(factory, fan, Work("f", 3))
        assert drain(factory, jobs).succeeded == 4
        with Session(second_engine) as look:
            assert look.scalars(select(Job.id)).all() == []
    with Session(engine) as look:
        assert look.scalars(select(Job.id)).all() == []
        assert look.scalars(select(Visit.id)).all() == []
        assert look.scalars(select(WorkerRow.id)).all() == []


def test_the_session_in_which_a_job_was_enqueued_may_still_be_open(factory):
    with factory() as session:
        session.add(Visit(name="request"))
        session.flush()
        session.enqueue(visit, Work("a"))
        assert drain(factory, jobs).succeeded == 1
        session.rollback()
    assert visits(factory) == []


def test_jobs_that_jobs_enqueue_are_run_too_up_to_the_limit(factory):
    enqueue(factory, fan, Work("f", 3))
    first = drain(factory, jobs, limit=2)
    assert (first.attempts, first.succeeded) == (2, 2)
    assert len(visits(factory)) == 1
    assert drain(factory, jobs).succeeded == 2
    assert visits(factory) == ["f-0", "f-1", "f-2"]


def test_only_the_queues_that_are_named_are_drained(factory):
    enqueue(factory, fan, Work("f", 1))
    assert drain(factory, jobs, queues={"fans"}).succeeded == 1
    assert states(factory) == {"f": "succeeded", "f-0": "ready"}
    with pytest.raises(RunRefusedError, match="fan.*no declared job.*'default'"):
        drain(factory, jobs, queues={"fan"})


def test_a_paused_queue_is_not_drained(factory):
    enqueue(factory, visit, Work("a"))
    with factory.begin() as session:
        pause_queue(session, "default")
    assert drain(factory, jobs).attempts == 0


def test_what_a_handler_raises_is_raised_after_it_was_settled(factory):
    queued = enqueue(factory, break_, Work("b"))
    with pytest.raises(Broken, match="b") as caught:
        drain(factory, jobs)
    assert f"attempt 1 of job 'break' ({queued.id})" in caught.value.__notes__[0]
    # Its rows and jobs are rolled back, the failure is recorded.
    assert (visits(factory), states(factory)) == ([], {"b": "ready"})
    with factory() as session:
        (attempt,) = session.scalars(select(Attempt))
        assert (attempt.outcome, attempt.error_type) == ("failed", "Broken")


def test_a_failing_job_does_not_keep_the_others_from_running(factory):
    for key in "ab":
        enqueue(factory, break_, Work(key))
    enqueue(factory, visit, Work("c"))
    done = drain(factory, jobs, raise_errors=False)
    assert (done.succeeded, done.retried, done.dead) == (1, 2, 0)


def test_retries_run_when_a_frozen_clock_has_reached_them(factory, sqla_jobs_clock):
    enqueue(factory, mend, Work("m", 2))
    assert drain(factory, jobs, raise_errors=False).retried == 1
    assert drain(factory, jobs).attempts == 0
    sqla_jobs_clock.advance("59m")
    assert drain(factory, jobs).attempts == 0
    sqla_jobs_clock.advance(timedelta(minutes=1))
    assert drain(factory, jobs, raise_errors=False).retried == 1
    sqla_jobs_clock.advance("1h")
    assert drain(factory, jobs).succeeded == 1
    with factory() as session:
        assert session.scalars(select(Visit.attempt)).all() == [3]


def test_a_death_is_told_to_its_job(factory, sqla_jobs_clock):
    enqueue(factory, break_, Work("b"))
    drain(factory, jobs, raise_errors=False)
    sqla_jobs_clock.advance("1h")
    done = drain(factory, jobs, raise_errors=False)
    assert (done.dead, done.succeeded) == (1, 1)
    assert visits(factory) == ["reported break"]


def test_signals_do_what_they_do_in_a_worker(factory, sqla_jobs_clock):
    enqueue(factory, signal, Work("snooze"))
    assert drain(factory, jobs).snoozed == 1
    enqueue(factory, signal, Work("discard"))
    with pytest.raises(Discard):
        drain(factory, jobs)
    assert states(factory) == {"snooze": "ready", "discard": "dead"}
    enqueue(factory, signal, Work("exit"))
    assert drain(factory, jobs, raise_errors=False).retried == 1


def test_an_interrupted_test_is_interrupted(factory):
    enqueue(factory, signal, Work("interrupt"))
    with pytest.raises(KeyboardInterrupt):
        drain(factory, jobs, raise_errors=False)


def test_a_handlers_own_commit_stays_when_it_fails_later(factory):
    enqueue(factory, midway, Work("m"))
    assert drain(factory, jobs, raise_errors=False).dead == 1
    assert visits(factory) == ["m-first"]


def test_a_lost_attempt_cannot_commit(factory):
    enqueue(factory, midway, Work("lost"))
    done = drain(factory, jobs)
    assert (done.stale, done.succeeded) == (1, 0)
    assert visits(factory) == ["lost-first"]


def test_lifespan_and_around_are_entered_as_in_a_worker(factory):
    for key in "ab":
        enqueue(factory, visit, Work(key))
    drain(factory, jobs)
    assert entered == [
        *("open", "before visit", "after visit", "before visit", "after visit"),
        "close",
    ]


def test_resources_can_be_given_in_the_place_of_the_lifespans(factory):
    queued = enqueue(factory, use_gateway, Work("g"))
    fake = {Gateway: Gateway("fake")}
    drain(factory, jobs, resources=fake)
    with factory() as session:
        assert job_output(session, use_gateway, queued.id) == "fake"
    assert "open" not in entered


def test_an_async_lifespan_serves_sync_handlers(factory):
    opened = []

    @asynccontextmanager
    async def lifespan():
        yield {Gateway: Gateway("async")}
        opened.append("closed")

    mine = Jobs(lifespan=lifespan)

    @mine.job("g", input=Work, idempotency_key=lambda i: i.key, tenant=NO_TENANT)
    def use(ctx: JobContext, work: Work) -> None:
        opened.append(ctx.resource(Gateway).name)

    enqueue(factory, use, Work("g"))
    drain(factory, mine)
    assert opened == ["async", "closed"]


def test_what_around_raises_is_raised(factory):
    @contextmanager
    def around(facts):
        yield
        raise Broken("around")

    mine = Jobs(around=around)

    @mine.job("n", input=Work, idempotency_key=lambda i: i.key, tenant=NO_TENANT)
    def nothing(ctx: JobContext, work: Work) -> None: ...

    enqueue(factory, nothing, Work("n"))
    with pytest.raises(Broken, match="around"):
        drain(factory, mine)


def test_an_input_that_cannot_be_read_is_raised_too(factory):
    queued = enqueue(factory, visit, Work("a"))
    with factory.begin() as session:
        session.get_one(JobBody, queued.id).input = {"key": 1}
    with pytest.raises(PayloadError, match=r"input\.key"):
        drain(factory, jobs)
    assert states(factory) == {"a": "dead"}


def test_jobs_that_cannot_be_run_here_are_left_with_the_reason(factory):
    enqueue(factory, elsewhere, Work("e"))
    enqueue(factory, stranger, Work("s"))
    enqueue(factory, mail, Mail(user_id=1))
    enqueue(factory, visit, Work("v"))
    done = drain(factory, jobs)
    assert done.succeeded == 1
    assert done.left.keys() == {"elsewhere", "stranger", "mail"}
    assert "drain_async" in done.left["mail"]
    assert "drain_async" in repr(done)
    assert states(factory) == {
        "e": "ready",
        "s": "ready",
        "1": "ready",
        "v": "succeeded",
    }
    with factory() as session:
        assert set(session.scalars(select(Job.attempt))) == {0, 1}


def test_a_cancelled_job_is_not_run(factory):
    queued = enqueue(factory, visit, Work("a"))
    with factory.begin() as session:
        cancel_job(session, queued.id)
    assert drain(factory, jobs).attempts == 0


def test_sessions_without_a_savepoint_are_refused_with_the_recipe(engine):
    with engine.connect() as connection, connection.begin():
        factory = sessionmaker(connection, class_=JobSession)
        with pytest.raises(RunRefusedError, match="join_transaction_mode"):
            drain(factory, jobs)


def test_a_factory_of_an_engine_commits_for_real(engine, second_engine):
    factory = sessionmaker(engine, class_=JobSession)
    enqueue(factory, fan, Work("f", 2))
    assert drain(factory, jobs).succeeded == 3
    assert visits(sessionmaker(second_engine)) == ["f-0", "f-1"]


@pytest.mark.needs("skip_locked")
def test_a_row_that_another_transaction_holds_is_told(engine, second_engine):
    factory = sessionmaker(engine, class_=JobSession)
    mine = Jobs()

    with second_engine.connect() as blocker:

        @mine.job("held", input=Work, idempotency_key=lambda i: i.key, tenant=NO_TENANT)
        def held(ctx: JobContext, work: Work) -> None:
            query = select(Job.id).where(Job.id == ctx.job_id).with_for_update()
            blocker.execute(query)

        enqueue(factory, held, Work("h"))
        with pytest.raises(RunRefusedError, match="locked by another transaction"):
            drain(factory, mine)


def test_a_scoped_sessions_own_work_is_not_touched(factory):
    registry = scoped_session(factory)
    mine = Jobs()
    seen = []

    @mine.job("s", input=Work, idempotency_key=lambda i: i.key, tenant=NO_TENANT)
    def use(ctx: JobContext, work: Work) -> None:
        seen.append(ctx.session is registry())
        registry.add(Visit(name="of the job"))

    enqueue(factory, use, Work("s"))
    registry.add(Visit(name="of the test"))
    own = registry()
    assert drain(registry, mine).succeeded == 1
    assert seen == [True]
    assert registry() is own
    assert [each.name for each in own.new] == ["of the test"]
    registry.rollback()
    assert visits(factory) == ["of the job"]


@pytest.mark.needs("server")
def test_no_setting_of_the_tests_transaction_is_changed(factory, server):
    def settings():
        names = ("idle_in_transaction_session_timeout", "lock_timeout")
        with factory() as session:
            return [session.scalar(text(f"show {name}")) for name in names]

    before = settings()
    enqueue(factory, fan, Work("f", 2))
    enqueue(factory, midway, Work("m"))
    enqueue(factory, midway, Work("lost"))
    drain(factory, jobs, raise_errors=False)
    assert settings() == before


def test_a_clock_moved_past_the_lease_by_a_handler_ends_nothing(
    factory, sqla_jobs_clock
):
    mine = Jobs()

    @mine.job("t", input=Work, idempotency_key=lambda i: i.key, tenant=NO_TENANT)
    def travel(ctx: JobContext, work: Work) -> None:
        sqla_jobs_clock.advance("3d")

    for key in "ab":
        enqueue(factory, travel, Work(key))
    assert drain(factory, mine).succeeded == 2


def test_a_job_that_was_lost_raises_what_its_handler_got(factory):
    mine = Jobs()

    @mine.job("l", input=Work, idempotency_key=lambda i: i.key, tenant=NO_TENANT)
    def lose(ctx: JobContext, work: Work) -> None:
        ctx.session.get_one(Job, ctx.job_id).fence += 1
        ctx.session.add(Visit(name="lost"))
        ctx.session.commit()

    enqueue(factory, lose, Work("l"))
    with pytest.raises(LeaseLostError):
        drain(factory, mine)
    assert visits(factory) == []
