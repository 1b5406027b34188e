"""``sqla-jobs queues`` and ``workers``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from sqla_jobs import inspect
from sqla_jobs.models import QueueRow
from tests.support.rows import add_job, add_worker

pytestmark = pytest.mark.each_kind


@pytest.fixture
def session(engine):
    with Session(engine) as session:
        yield session


def test_queues_show_depth_age_and_pause(run, session):
    past = datetime.now(UTC) - timedelta(hours=3, minutes=7)
    add_job(session, queue="billing", run_at=past)
    add_job(session, queue="billing", run_at=past + timedelta(days=9))
    add_job(session, "dead", queue="mail")
    session.commit()
    run("queues", "pause", "mail")

    lines = run("queues").out.splitlines()

    assert lines[1].split() == ["billing", *["1", "1", "0", "0", "3h", "7m", "0"]]
    assert lines[2].split() == ["mail", *["0", "0", "0", "1", "-", "0"]]
    assert "paused" in lines[3]


def test_queues_as_json_are_what_the_library_returns(run, session):
    add_job(session, queue="billing", run_at=datetime.now(UTC) + timedelta(days=1))
    session.commit()
    stats = [each.as_dict() for each in inspect.queues(session)]
    assert run("queues", "--json").json == {"version": 1, "queues": stats}


def test_a_queue_is_paused_and_resumed(run, session):
    add_job(session, queue="billing")
    session.commit()

    assert run("queues", "pause", "billing").out == "billing is paused\n"
    assert session.get_one(QueueRow, "billing").paused_at is not None
    assert run("queues", "pause", "billing").out == "billing was paused already\n"
    assert run("queues", "resume", "billing").out == "billing is resumed\n"
    assert run("queues", "resume", "billing").out == "billing was not paused\n"


@pytest.mark.covers("C121")
@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_queue_that_nobody_uses_is_refused(run, session, verb):
    """A misspelt pause would look like a pause."""
    add_job(session, queue="billing")
    session.commit()
    said = run("queues", verb, "biling")
    assert said.code == 1
    assert "billing" in said.err
    assert session.get(QueueRow, "biling") is None


def test_a_new_queue_can_be_paused_before_it_is_used(run, session):
    assert run("queues", "pause", "later", "--new").code == 0
    assert session.get_one(QueueRow, "later").paused_at is not None


def test_no_queues_and_no_workers_say_so(run):
    assert run("queues").out.startswith("No queues")
    assert run("workers").out == "No workers.\n"
    assert run("queues", "--json").json == {"version": 1, "queues": []}
    assert run("workers", "--json").json == {"version": 1, "workers": []}


def test_workers_tell_who_lives_and_what_they_run(run, session):
    now = datetime.now(UTC)
    alive = add_worker(
        session,
        host="web-1",
        lease_until=now + timedelta(hours=1),
        queues={"a": 3},
        started_at=now,
    )
    add_worker(session, host="web-2", lease_until=now - timedelta(hours=1))
    job_id = add_job(session, "running", name="shop.charge", worker_id=alive)
    session.commit()

    out = run("workers").out
    first, second = run("workers", "--json").json["workers"]

    assert "web-1:42" in out
    assert "1h left" in out
    assert "a:3" in out
    assert "shop.charge" in out
    assert "expired 1h" in out
    assert (first["alive"], second["alive"]) == (True, False)
    assert [job["id"] for job in first["jobs"]] == [str(job_id)]
