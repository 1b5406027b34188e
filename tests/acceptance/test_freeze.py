"""Workers that are frozen for longer than their lease, and come back."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import func, select

from sqla_jobs import job_output
from sqla_jobs.models import Attempt, Job, WorkerRow
from tests.acceptance import crash_app as app
from tests.support.shop import Order, Visit
from tests.support.waiting import wait_until

RESCUED_WITHIN = 12.0
"""Lease, grace and the rescuer's interval, with the start of a process."""


@pytest.fixture
def frozen_inside(Session, processes, tmp_path):
    """Enqueue *spec*, freeze its worker inside of it, let another worker finish it.

    Returns the job's id and the frozen process, before it is thawed; the gate is open.
    """

    def run(spec, keys=("job",)):
        gate = tmp_path / "gate"
        tasks = [app.Task(key, str(gate), order=1) for key in keys]
        with Session.begin() as session:
            session.add(Order(id=1, org_id=1, note="new"))
            specs = spec if isinstance(spec, list) else [spec]
            ids = [session.enqueue(s, t).id for s, t in zip(specs, tasks, strict=True)]
        zombie = processes.call(app.serve, {"default": len(keys)})
        for key in keys:
            zombie.wait_for_line(f"{key} inside 1")
        return ids, zombie, gate

    return run


def backends_known(Session):
    with Session() as session:
        return [pids for pids in session.scalars(select(WorkerRow.backends)) if pids]


def settled(Session, ids):
    with Session() as session:
        done = select(func.count()).where(Job.id.in_(ids), Job.state == "succeeded")
        return session.execute(done).scalar_one() == len(ids)


def finish_by_another(Session, processes, zombie, ids):
    zombie.freeze()
    other = processes.call(app.serve, {"default": len(ids)})
    wait_until(lambda: settled(Session, ids), RESCUED_WITHIN, what="jobs finished")
    return other


def stop(child):
    child.terminate()
    stats = json.loads(child.wait_for_line(r"^stats (.+)")[1])
    assert child.wait() == 0
    return stats


def assert_done_once_by_the_second_attempt(Session, job_id, key="job"):
    with Session() as session:
        job = session.get_one(Job, job_id)
        assert (job.state, job.attempt) == ("succeeded", 2)
        [first] = session.scalars(select(Attempt).where(Attempt.job_id == job_id))
        assert (first.number, first.outcome) == (1, "lost")
        visits = select(Visit.attempt).where(Visit.name == key)
        assert session.scalars(visits).all() == [2]
        assert app.order_of(session, 1) == f"{key} 2"


@pytest.mark.covers("T06")
def test_what_a_frozen_worker_wrote_is_refused_when_it_comes_back(
    Session, processes, frozen_inside
):
    """Its completing commit is refused; the effects of the other one exist once.

    The row it had updated and not committed would block the other attempt: whoever
    rescues the job ends the transaction that the frozen process left open.
    """
    ids, zombie, gate = frozen_inside(app.write)
    wait_until(lambda: backends_known(Session), what="a beat that tells the backend")
    other = finish_by_another(Session, processes, zombie, ids)
    assert zombie.returncode is None  # Still frozen: the lock was taken from it.
    assert other.wait_for_line("ended 1 transactions of lost workers")

    gate.touch()
    zombie.thaw()
    zombie.wait_for_line("job leaves 1")
    zombie.wait_for_line("has lost its lease|was refused")

    stats = stop(zombie)
    assert (stats["stale"], stats["succeeded"]) == (1, 0)
    assert stop(other)["stale"] == 0
    assert_done_once_by_the_second_attempt(Session, ids[0])


@pytest.mark.covers("T06")
@pytest.mark.parametrize("spec", [app.commit, app.write_late], ids=lambda s: s.name)
def test_a_commit_after_the_lease_raises_lease_lost(
    Session, processes, frozen_inside, spec
):
    """Also when its connection was ended, and when it began only after the freeze."""
    ids, zombie, gate = frozen_inside(spec)
    if spec is app.commit:
        wait_until(lambda: backends_known(Session), what="a beat with the backend")
    other = finish_by_another(Session, processes, zombie, ids)

    gate.touch()
    zombie.thaw()

    assert zombie.wait_for_line(r"job refused (\w+)")[1] == "LeaseLostError"
    stats = stop(zombie)
    assert (stats["stale"], stats["succeeded"], stats["retried"]) == (1, 0, 0)
    stop(other)
    assert_done_once_by_the_second_attempt(Session, ids[0])


@pytest.mark.covers("T06")
def test_no_outcome_of_a_frozen_worker_is_accepted_when_it_comes_back(
    Session, processes, frozen_inside
):
    """Neither its result, nor its retry, nor its snooze."""
    specs = [app.answer, app.fail, app.snooze]
    keys = ["answer", "fail", "snooze"]
    ids, zombie, gate = frozen_inside(specs, keys)
    other = finish_by_another(Session, processes, zombie, ids)

    gate.touch()
    zombie.thaw()
    wait_until(lambda: "lost its lease" in zombie.output, what="the lease noticed")

    stats = stop(zombie)
    assert stats["stale"] == 3
    assert stats["succeeded"] + stats["retried"] + stats["snoozed"] == 0
    stop(other)
    with Session() as session:
        assert job_output(session, app.answer, ids[0]) == 2
        for job in session.scalars(select(Job)):
            assert (job.state, job.attempt, job.fence) == ("succeeded", 2, 3)
            assert [a.outcome for a in job.attempts] == ["lost"]


BOUNDED = 15.0 + RESCUED_WITHIN
"""What the server lets a transaction idle that holds jobs, and a rescue after it."""


@pytest.mark.timeout(120)
def test_a_worker_frozen_inside_a_transaction_hides_its_jobs_for_a_bounded_time(
    Session, processes
):
    """Frozen between its statement and the COMMIT, it holds rows that rescue and claim
    step over: the server ends that transaction.
    """
    queues = {"settle": "door0", "rescue": "door1", "hold": "default"}
    with Session.begin() as session:
        ids = [
            session.enqueue(app.doors[0], app.Task("settle")).id,
            session.enqueue(app.doors[1], app.Task("rescue")).id,
            session.enqueue(app.commit, app.Task("hold", order=1)).id,
        ]
        session.add(Order(id=1, org_id=1))
    # A worker dies with the job that the next one freezes while rescuing it.
    dying = processes.call(app.die_with_claim, ["door1"])
    dying.wait_for_line("door1 ended with -9")
    for step, queue in queues.items():
        child = processes.call(app.freeze_after, step, {queue: 1})
        child.wait_for_line(f"frozen after {step}")
        wait_until(child._is_frozen, what=f"frozen inside {step}")

    processes.call(app.serve, dict.fromkeys(queues.values(), 1))
    wait_until(lambda: settled(Session, ids), BOUNDED, what="all three finished")

    with Session() as session:
        names = session.scalars(select(Visit.name).order_by(Visit.name)).all()
        assert names == ["hold", "rescue", "settle"]
