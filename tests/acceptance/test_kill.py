"""Workers that are killed: what they held runs again, and a poison pill ends."""

from __future__ import annotations

import re
import time

import pytest
from sqlalchemy import func, select

from sqla_jobs.models import Attempt, Job
from sqla_jobs.worker.rescuer import GRACE
from tests.acceptance import crash_app as app
from tests.support.shop import Visit
from tests.support.waiting import wait_until

HELD = 1000
RUNNING = 20
TTL = 3.0


def count(Session, *conditions):
    with Session() as session:
        found = select(func.count()).select_from(Job).where(*conditions)
        return session.execute(found).scalar_one()


@pytest.mark.covers("T07")
def test_all_that_a_killed_worker_held_runs_again_in_time(Session, processes, tmp_path):
    """A thousand jobs, running and claimed ahead, within lease, grace and 10 s."""
    gate = str(tmp_path / "never")
    tasks = [app.Task(f"job{number}", gate) for number in range(HELD)]
    with Session.begin() as session:
        session.enqueue_many(app.visit, tasks)
    victim = processes.call(
        app.serve, {"default": RUNNING}, HELD - RUNNING, f"{TTL:g}s", False
    )
    wait_until(
        lambda: count(Session, Job.state == "running") == HELD, 20, what="all are held"
    )
    assert count(Session, Job.attempt == 1) == HELD
    victim.kill()
    killed = time.monotonic()

    processes.call(app.serve, {"default": RUNNING}, None, f"{TTL:g}s", False)
    limit = TTL + GRACE.total_seconds() + 10.0
    wait_until(
        lambda: count(Session, Job.state == "succeeded") == HELD,
        killed + limit - time.monotonic(),
        what=f"all run again within {limit:g} s",
    )

    assert count(Session, Job.attempt == 2, Job.fence == 3) == HELD
    with Session() as session:
        lost = select(Attempt.outcome, Attempt.number, func.count()).group_by(
            Attempt.outcome, Attempt.number
        )
        assert session.execute(lost).all() == [("lost", 1, HELD)]
        visits = select(
            func.count(), func.count(Visit.name.distinct()), func.min(Visit.attempt)
        )
        assert session.execute(visits).one() == (HELD, HELD, 2)


@pytest.mark.covers("T02")
def test_a_process_killed_between_claim_and_start_costs_one_attempt(
    Session, engine, processes
):
    """Twenty times: one successor each. And never more attempts than allowed."""
    with Session.begin() as session:
        for number, spec in enumerate(app.doors):
            session.enqueue(spec, app.Task(f"door{number}"))
        session.enqueue(app.last_door, app.Task("last"))
    queues = [spec.queue for spec in app.doors]

    # The last one has two attempts, and both processes that claim it die.
    dying = processes.call(app.die_with_claim, [*queues, "last", "last"])
    assert dying.wait(60) == 0, dying.output
    assert dying.output.count("ended with -9") == len(queues) + 2, dying.output
    processes.call(app.serve, dict.fromkeys([*queues, "last"], 1))
    open_jobs = Job.state.in_(("ready", "running"))
    wait_until(lambda: not count(Session, open_jobs), 20, what="all settled")

    with Session() as session:
        for job in session.scalars(select(Job).where(Job.queue != "last")):
            assert (job.state, job.attempt) == ("succeeded", 2)
            assert [(a.number, a.outcome) for a in job.attempts] == [(1, "lost")]
        visits = session.execute(select(Visit.name, Visit.attempt)).all()
        assert sorted(visits) == sorted((queue, 2) for queue in queues)
        last = session.scalars(select(Job).where(Job.queue == "last")).one()
        assert (last.state, last.attempt, last.max_attempts) == ("dead", 2, 2)
        lost = [(a.number, a.outcome) for a in last.attempts]
        assert lost == [(1, "lost"), (2, "lost")]


@pytest.mark.covers("C23")
@pytest.mark.parametrize("spec", [app.poison, app.poison_once], ids=lambda s: s.name)
def test_a_job_that_kills_its_process_dies_after_its_attempts(Session, processes, spec):
    """One process per attempt, not one more; the others go on meanwhile."""
    attempts = spec.retry.attempts
    with Session.begin() as session:
        poison = session.enqueue(spec, app.Task("poison")).id
        for number in range(60):
            task = app.Task(f"job{number}")
            session.enqueue(app.visit, task, delay=f"{1 + 20 * attempts * number}ms")
    crew = [processes.call(app.serve, {"default": 4}) for _ in range(2)]
    dead = []

    def all_settled():
        for place, child in enumerate(crew):
            if child.returncode is not None:
                dead.append(child)
                crew[place] = processes.call(app.serve, {"default": 4})
        return not count(Session, Job.state.in_(("ready", "running")))

    wait_until(all_settled, 40, what="all settled")

    assert len(dead) == attempts
    said = "\n".join(child.output for child in [*dead, *crew])
    runs = [int(n) for n in re.findall(r"poison runs (\d)", said)]
    assert sorted(runs) == [*range(1, attempts + 1)]
    with Session() as session:
        job = session.get_one(Job, poison)
        assert (job.state, job.attempt) == ("dead", attempts)
        ends = [(a.number, a.outcome, a.error_type) for a in job.attempts]
        assert ends == [(n, "lost", "WorkerLost") for n in range(1, attempts + 1)]
        assert "worker lost" in job.attempts[-1].error
        visits = session.scalars(select(Visit.name)).all()
        assert len(visits) == len(set(visits)) == 60
        died_at = job.finished_at
    progress = count(Session, Job.state == "succeeded", Job.finished_at < died_at)
    assert progress > 20
