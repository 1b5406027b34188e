"""A worker runs what was enqueued, in order, at its time, once."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from sqla_jobs import cancel_job, pause_queue, resume_queue
from sqla_jobs.models import Attempt, Job, JobOutput, QueueRow
from tests.support.waiting import wait_until
from tests.worker import app

pytestmark = pytest.mark.each_kind


def test_both_kinds_of_handlers_commit_with_their_completion(queue, start):
    queue.add(app.visit, "a", "b")
    queue.add(app.visit_async, "c", "d")
    worker = start()
    queue.wait_for_states(succeeded=4)
    assert sorted(queue.visits()) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    wait_until(lambda: worker.stats.succeeded == 4)
    assert worker.stats.stale == 0


def test_an_idle_worker_is_woken_by_the_commit(queue, start):
    """The poll interval plays no part once LISTEN is proven."""
    worker = start(poll_interval="60s")
    wait_until(worker._parts.listener.healthy)
    for name in "abc":
        queue.add(app.visit, name)
        queue.wait_for_visits("abc".index(name) + 1, timeout=5.0)


@pytest.mark.covers("T53")
def test_t53_the_last_enqueue_of_a_burst_always_wakes_somebody(queue, start):
    """Hints are held back for 20 ms; the last one of a burst is never swallowed."""
    worker = start(poll_interval="60s")
    wait_until(worker._parts.listener.healthy)
    for burst in range(20):
        for one in range(5):
            queue.add(app.noop, f"{burst}.{one}")
        expected = 5 * (burst + 1)
        wait_until(
            lambda n=expected: worker.stats.succeeded == n, 5.0, what=f"burst {burst}"
        )


@pytest.mark.covers("T18")
def test_t18_a_future_job_starts_at_its_time_without_polling_faster(
    queue, start, engine
):
    worker = start(poll_interval="60s")
    wait_until(worker._parts.listener.healthy)
    ids = queue.add(app.noop, "soon", delay="1500ms")
    (later,) = queue.add(app.noop, "later", delay="3s")
    wait_until(lambda: worker.stats.claims > 0 and worker._parts.claimer._dry)
    before = worker.stats.claims
    queue.wait_for_states(succeeded=2)
    # One claim in time for each, and few in vain: nothing polls.
    assert worker.stats.claims - before <= 8
    with engine.connect() as connection:
        late = connection.execute(
            select(Job.attempted_at, Job.run_at).where(Job.id.in_([*ids, later]))
        )
        for started, due in late:
            assert timedelta(0) <= started - due <= timedelta(milliseconds=50)


@pytest.mark.covers("T19")
def test_t19_priority_then_age_decide_the_order(queue, start):
    """Strictly, with one attempt at a time; also over several claims."""
    names = [(5, "c"), (0, "a"), (9, "f"), (5, "d"), (0, "b"), (5, "e")]
    for priority, name in names:
        queue.add(app.visit, name, priority=priority)
    start(queues={"default": 1}, prefetch=1)
    queue.wait_for_states(succeeded=6)
    assert [name for name, _ in queue.visits()] == list("abcdef")


@pytest.mark.covers("T19")
def test_t19_two_queues_share_a_worker_by_their_rooms_exactly(queue, start):
    queue.add(app.hold, *[f"d{n}" for n in range(9)])
    queue.add(app.billing, *[f"b{n}" for n in range(9)])
    worker = start(queues={"default": 3, "billing": 2}, prefetch=2)
    queue.wait_for_visits(5)
    rooms = worker._parts.rooms
    wait_until(lambda: rooms["default"].waiting == 2 and rooms["billing"].waiting == 2)
    assert rooms["default"].running == 3
    assert rooms["billing"].running == 2
    assert queue.states() == {"running": 9, "ready": 9}
    running = [name[0] for name, _ in queue.visits()]
    assert sorted(running) == ["b", "b", "d", "d", "d"]
    queue.go()
    queue.wait_for_states(succeeded=18)


def test_a_failed_attempt_is_retried_and_recorded(queue, start):
    (job_id,) = queue.add(app.fail, "x")
    start(poll_interval="60s")
    queue.wait_for_states(dead=1)
    assert queue.visits() == [("x", 1), ("x", 2), ("x", 3)]
    first, second, third = queue.attempts(job_id)
    assert [first.outcome, second.outcome, third.outcome] == [
        "failed",
        "failed",
        "dead",
    ]
    assert first.error_type == "ValueError"
    assert first.error.rstrip().endswith("ValueError: x")
    assert [a.number for a in (first, second, third)] == [1, 2, 3]


def test_the_job_named_by_on_dead_learns_of_a_death_once(queue, start):
    queue.add(app.mourned, "x")
    start()
    queue.wait_for_states(dead=1, succeeded=1)
    ((told, _),) = queue.visits()
    assert told.startswith("mourned: Traceback")
    assert "the reason" in told


def test_a_death_that_cannot_be_told_is_recorded(queue, start, monkeypatch, caplog):
    def fails(spec, dead):
        raise KeyError("no key")

    queue.add(app.mourned, "x")
    monkeypatch.setattr(type(app.report), "idempotency_key", fails)
    start()
    queue.wait_for_states(dead=1)
    assert "cannot be told" in caplog.text


def test_jobs_nobody_here_knows_are_left_to_others_and_starve_nobody(
    queue, start, engine, caplog
):
    with queue.sessions.begin() as session:
        for number in range(150):
            session.enqueue(app.hold, app.Do(f"unknown {number}"), priority=0)
    with engine.begin() as connection:
        connection.execute(text("update sqla_job set name = 'of.another.release'"))
    queue.add(app.visit, *[f"{n}" for n in range(20)], priority=9)
    start(queues={"default": 2}, prefetch=0)
    wait_until(lambda: queue.states().get("succeeded") == 20)
    assert caplog.text.count("of.another.release") == 1
    with engine.connect() as connection:
        attempts = connection.execute(
            select(Job.attempt).where(Job.name == "of.another.release")
        ).scalars()
        assert set(attempts) == {0}


def test_a_paused_queue_is_not_claimed_from(queue, start):
    with queue.sessions.begin() as session:
        pause_queue(session, "default")
    worker = start(lease_ttl="1s")
    wait_until(lambda: worker._parts.claimer.paused)
    queue.add(app.visit, "a")
    queue.add(app.billing, "b")
    with queue.sessions.begin() as session:
        resume_queue(session, "default")
    queue.wait_for_visits(1)
    with Session(queue.look) as session:
        assert session.scalars(select(QueueRow.name)).all() == ["default"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_running_job_that_is_cancelled_ends_as_cancelled(queue, start, kind):
    spec = app.hold if kind == "sync" else app.nap_async
    (job_id,) = queue.add(spec, "x", seconds=60.0)
    start(lease_ttl="1s")
    queue.wait_for_visits(1)
    with queue.sessions.begin() as session:
        cancel_job(session, job_id, reason="customer left")
    if kind == "sync":
        # It returns when it is asked to end: that counts as done.
        queue.wait_for_states(succeeded=1)
    else:
        queue.wait_for_states(cancelled=1)
        assert queue.history(job_id) == ["cancelled"]


@pytest.mark.needs("server")
@pytest.mark.parametrize(
    ("spec", "attempts"),
    [(app.slow, 3), (app.slow_async, 3), (app.slow_sql, 2), (app.slow_async_sql, 2)],
    ids=lambda v: getattr(v, "name", v),
)
@pytest.mark.covers("C31")
def test_c31_an_attempt_past_its_timeout_is_ended_and_counted(
    queue, start, spec, attempts, engine
):
    """Its locks do not stand in the way of the next attempt, nor does its thread."""
    (job_id,) = queue.add(spec, "x")
    start(queues={"default": 1})
    if attempts == 3:
        queue.wait_for_states(dead=1)
    else:
        queue.wait_for_states(succeeded=1)
    assert queue.history(job_id) == ["timed_out"] * attempts
    assert queue.visits() == [("x", 1), ("x", 2), ("x", 3)]
    assert all(a.error_type == "JobTimeoutError" for a in queue.attempts(job_id))
    with engine.connect() as connection:
        sleeping = text(
            "select count(*) from pg_stat_activity where query like '%pg_sleep%'"
            " and pid <> pg_backend_pid() and state <> 'idle'"
            " and datname = current_database()"
        )
        wait_until(lambda: connection.scalar(sleeping) == 0)
    queue.go()


@pytest.mark.covers("C31")
@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_c31_failures_and_timeouts_count_exactly(queue, start, engine, attempts):
    (failing,) = queue.add(app.fail, "fails")
    (slow,) = queue.add(app.slow_async, "slow")
    with engine.begin() as connection:
        connection.execute(
            text("update sqla_job set max_attempts = :n"), {"n": attempts}
        )
    start()
    queue.wait_for_states(dead=2)
    assert len(queue.visits("fails")) == len(queue.visits("slow")) == attempts
    for job_id in (failing, slow):
        assert queue.job(job_id).attempt == attempts


def test_outputs_are_stored(queue, start, engine):
    from sqla_jobs import Jobs

    jobs = Jobs()

    @jobs.job("answer", **app.options())
    def answer(ctx, do) -> dict[str, int]:
        return {"n": 42}

    @jobs.job("answer.session", **app.options())
    def answer_session(ctx, do) -> dict[str, int]:
        ctx.session.execute(text("select 1"))
        return {"n": 43}

    queue.add(answer, "x")
    queue.add(answer_session, "y")
    start(jobs, async_session=None)
    queue.wait_for_states(succeeded=2)
    with Session(engine) as session:
        outputs = session.scalars(select(JobOutput.output)).all()
        assert sorted(o["n"] for o in outputs) == [42, 43]
        assert session.scalars(select(Attempt)).all() == []


def test_an_enqueue_in_a_handler_commits_with_it_and_wakes_the_worker(queue, start):
    from sqla_jobs import Jobs

    jobs = Jobs()

    @jobs.job("second", **app.options())
    def second(ctx, do):
        ctx.session.add(app.Visit(name=do.name, attempt=ctx.attempt))

    @jobs.job("first", **app.options())
    def first(ctx, do):
        ctx.session.enqueue(second, app.Do(f"{do.name}.{ctx.attempt}"))
        if ctx.attempt == 1:
            raise ValueError("the first attempt's enqueue never existed")

    queue.add(first, "x")
    start(jobs, async_session=None, poll_interval="60s")
    queue.wait_for_states(succeeded=2)
    assert queue.visits() == [("x.2", 1)]


def test_a_rerun_asked_for_while_it_runs_happens_soon(queue, start):
    (job_id,) = queue.add(app.hold, "x")
    start(poll_interval="60s")
    queue.wait_for_visits(1)
    queue.add(app.hold, "x", on_duplicate="rerun")
    queue.go()
    asked = time.monotonic()
    queue.wait_for_visits(2)
    assert time.monotonic() - asked < 5.0
    queue.wait_for_states(succeeded=1)
    assert queue.job(job_id).attempt == 1
