"""The lease: what it survives, and what happens to jobs whose worker lost it."""

from __future__ import annotations

import signal

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from sqla_jobs.exc import WorkerConfigError
from sqla_jobs.models import Job, WorkerRow
from tests.support.shop import Effect
from tests.support.waiting import wait_until
from tests.worker import app

pytestmark = pytest.mark.each_kind

TERMINATE = text(
    "select count(pg_terminate_backend(pid)) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)


def effects(queue):
    with Session(queue.look) as session:
        query = select(Effect.name, Effect.attempt).order_by(Effect.name)
        return [tuple(row) for row in session.execute(query)]


def wait_for_backends(queue):
    """Wait until a worker has told which server processes its handlers use."""
    told = text(
        "select count(*) from sqla_worker where json_array_length(backends) > 0"
    )
    with queue.look.connect() as connection:
        wait_until(lambda: connection.scalar(told), 5.0)


def workers_alive(queue):
    with Session(queue.look) as session:
        return session.scalar(
            select(func.count())
            .select_from(WorkerRow)
            .where(WorkerRow.lease_until > func.clock_timestamp())
        )


@pytest.mark.needs("server")
@pytest.mark.covers("T03")
def test_t03_a_worker_whose_connections_are_cut_keeps_its_job(queue, spawn):
    """The lease held, so the attempt's outcome is accepted after the reconnect."""
    (job_id,) = queue.add(app.nap, "x", seconds=3.0)
    workers = [spawn(lease_ttl="4s") for _ in range(2)]
    queue.wait_for_visits(1)
    for _ in range(3):
        with queue.look.connect() as connection:
            connection.scalar(TERMINATE)
        # Connected anew: what a renewal or a claim needs.
        wait_until(lambda: workers_alive(queue) == 2)
    assert queue.states() == {"running": 1}
    queue.wait_for_states(succeeded=1)
    assert queue.visits() == [("x", 1)]
    assert queue.job(job_id).fence == 1
    for worker in workers:
        assert "lost" not in worker.output
        worker.terminate()
        assert worker.wait() == 0


@pytest.mark.covers("T04", "C42")
def test_t04_c42_jobs_ten_times_longer_than_the_lease_run_once(queue, spawn):
    """The heartbeat has a thread and a connection of its own.

    Neither a loop that holds the interpreter, nor one that blocks the event loop,
    stops it; four workers would be glad to have the jobs.
    """
    specs = (app.spin, app.block, app.nap, app.nap_async)
    # The sleeping one starts first: the other blocks the loop that they share.
    ids = [
        queue.add(
            spec, spec.name, seconds=15.0, priority=1 if spec is app.block else 0
        )[0]
        for spec in specs
    ]
    for _ in range(4):
        spawn(lease_ttl="1500ms")
    queue.wait_for_states(succeeded=4, timeout=60.0)
    assert sorted(queue.visits()) == sorted((spec.name, 1) for spec in specs)
    assert [queue.job(job_id).fence for job_id in ids] == [1, 1, 1, 1]


@pytest.mark.covers("C42")
@pytest.mark.parametrize("ttl", ["500ms", "1ms"])
def test_c42_a_lease_that_one_late_beat_would_lose_is_refused(start, queue, ttl):
    with pytest.raises(WorkerConfigError, match="lease_ttl"):
        start(lease_ttl=ttl)


@pytest.mark.covers("C23", "C31")
def test_c23_a_job_that_kills_its_process_ends_among_the_dead(queue, spawn):
    """Every loss counts as an attempt, and says why; the others get on."""
    (poison,) = queue.add(app.die, "poison", priority=0)
    (once,) = queue.add(app.die_once, "once", priority=0)
    queue.add(app.visit, *[f"{n}" for n in range(20)])
    others = {f"{n}" for n in range(20)}

    def settled():
        return queue.states() == {"dead": 2, "succeeded": 20}

    # A new process for each that died, as a supervisor does it. One job at a time: a
    # process takes its other attempts with it.
    children = []
    while not settled():
        assert len(children) < 8, "the poison goes on"
        child = spawn(lease_ttl="1s", queues={"default": 1}, prefetch=0)
        children.append(child)
        wait_until(lambda c=child: c.returncode is not None or settled(), 30.0)
    assert [c.returncode for c in children[:-1]] == [-signal.SIGKILL] * 4
    visits = queue.visits()
    assert [v for v in visits if v[0] == "poison"] == [("poison", n) for n in (1, 2, 3)]
    assert [v for v in visits if v[0] == "once"] == [("once", 1)]
    assert {name for name, _ in visits} >= others
    for job_id, count in ((poison, 3), (once, 1)):
        history = queue.attempts(job_id)
        assert [a.outcome for a in history] == ["lost"] * count
        assert "worker lost" in history[-1].error
        assert queue.job(job_id).state == "dead"


def test_a_killed_workers_thousand_jobs_all_run_again_in_time(queue, spawn, engine):
    """Running and prefetched ones: within lease, grace and ten seconds."""
    with queue.sessions.begin() as session:
        session.enqueue_many(app.hold, [app.Do(f"{n}") for n in range(10)])
        session.enqueue_many(app.noop, [app.Do(f"n{n}") for n in range(990)])
    first = spawn(lease_ttl="2s", prefetch=1000)
    # All of it is claimed, and nothing has come back: the ten hold their threads.
    wait_until(lambda: queue.states() == {"running": 1000}, 20.0)
    first.kill()
    queue.go()
    second = spawn(lease_ttl="2s", queues={"default": 50})
    queue.wait_for_states(succeeded=1000, timeout=2.0 + 2.0 + 10.0)
    with engine.connect() as connection:
        fences = connection.scalars(select(Job.fence).distinct()).all()
    assert fences == [3]  # claimed, rescued, claimed
    second.terminate()
    assert second.wait() == 0


@pytest.mark.needs("skip_locked")
def test_a_frozen_workers_commit_is_refused_and_effects_exist_once(queue, spawn):
    """SIGSTOP inside a job with business writes, past the lease, then SIGCONT."""
    (job_id,) = queue.add(app.effect, "x")
    frozen = spawn(lease_ttl="1s")
    queue.wait_for_visits(1)
    wait_for_backends(queue)
    frozen.freeze()
    other = spawn(lease_ttl="1s")
    queue.wait_for_visits(2)
    queue.go()
    queue.wait_for_states(succeeded=1)
    frozen.thaw()
    frozen.wait_for_line("has lost its lease")
    # It starts again under another identity, and works.
    wait_until(lambda: workers_alive(queue) == 2)
    assert effects(queue) == [("x", 2)]
    assert queue.history(job_id) == ["lost"]
    assert queue.job(job_id).attempt == 2
    other.terminate()
    assert other.wait() == 0
    queue.add(app.visit, "again")
    wait_until(lambda: ("again", 1) in queue.visits())
    frozen.terminate()
    assert frozen.wait() == 0


@pytest.mark.needs("skip_locked")
def test_a_lease_lost_in_the_database_fences_the_worker_at_its_next_beat(
    queue, start, engine
):
    """Somebody ended the lease: the attempt is abandoned, the worker starts anew."""
    (job_id,) = queue.add(app.hold_long, "x")
    worker = start(lease_ttl="2s")
    queue.wait_for_visits(1)
    before = worker._parts.heartbeat.lease.id
    with engine.begin() as connection:
        connection.execute(
            text("update sqla_worker set lease_until = now() - interval '1 hour'")
        )
    wait_until(lambda: worker._parts.heartbeat.lease.id != before)
    queue.wait_for_visits(2)
    queue.go()
    queue.wait_for_states(succeeded=1)
    assert queue.history(job_id) == ["lost"]
    assert worker.stats.rescued == 1
    wait_until(lambda: worker.stats.stale == 1)


@pytest.mark.needs("skip_locked")
def test_a_second_worker_rescues_what_a_frozen_one_holds_and_its_locks(queue, spawn):
    """A frozen process keeps its transaction open: the rescuer ends it."""
    queue.add(app.effect, "x")
    frozen = spawn(lease_ttl="1s")
    queue.wait_for_visits(1)
    wait_for_backends(queue)
    frozen.freeze()
    spawn(lease_ttl="1s")
    # The same unique row: its insert would wait for the frozen transaction.
    queue.wait_for_visits(2)
    queue.go()
    queue.wait_for_states(succeeded=1)
    assert effects(queue) == [("x", 2)]
    frozen.signal_group(signal.SIGKILL)
