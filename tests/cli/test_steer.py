"""``cancel``, ``retry`` and ``discard``: by ids, or all that the options choose."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from sqla_jobs.cli import steer
from sqla_jobs.models import Job
from sqla_jobs.queue import bulk
from tests.support.rows import NOW, add_attempt, add_job

pytestmark = pytest.mark.each_kind

NOBODY = UUID(int=404)


@pytest.fixture
def session(engine):
    with Session(engine) as session:
        yield session


@pytest.fixture
def small_batches(monkeypatch):
    """Three jobs in one transaction."""
    change = bulk.change_jobs

    def three(*args, **options):
        return change(*args, **options, limit=3)

    monkeypatch.setattr(steer, "change_jobs", three)


def add(session, state="ready", **values):
    job_id = add_job(session, state, **values)
    session.commit()
    return job_id


def state_of(session, job_id):
    session.rollback()
    return session.scalar(select(Job.state).where(Job.id == job_id))


def states(session):
    session.rollback()
    rows = session.execute(select(Job.state, func.count()).group_by(Job.state))
    return dict(rows.all())


def answer(monkeypatch, word):
    """Let somebody sit at the terminal who types *word*."""
    monkeypatch.setattr(steer, "_asks", lambda: True)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: word)


# --- ids -----------------------------------------------------------------------------


def test_cancel_says_what_it_did(run, session):
    ready, running = add(session), add(session, "running")

    said = run("jobs", "cancel", ready, running, "--reason", "not needed")

    assert said.code == 0
    assert said.out.splitlines() == [
        f"{ready} is cancelled",
        f"{running} is running and was asked to stop",
    ]
    assert state_of(session, ready) == "cancelled"
    job = session.get_one(Job, running)
    assert (job.state, job.cancel_reason) == ("running", "not needed")


def test_retry_and_discard(run, session):
    first, second = add(session, "succeeded"), add(session, "cancelled")
    assert run("jobs", "retry", first).out == f"{first} is ready\n"
    assert run("jobs", "discard", second).out == f"{second} is discarded\n"
    assert state_of(session, first) == "ready"
    assert state_of(session, second) is None


VERBS = {
    ("jobs", "cancel"): ("not-cancellable", {"ready", "waiting", "running"}),
    ("jobs", "retry"): ("not-retryable", {"succeeded", "dead", "cancelled"}),
    ("jobs", "discard"): ("not-discardable", {"succeeded", "dead", "cancelled"}),
    ("dead", "retry"): ("not-retryable", {"dead"}),
    ("dead", "discard"): ("not-discardable", {"dead"}),
}
STATES = ["ready", "waiting", "running", "succeeded", "dead", "cancelled"]


@pytest.mark.covers("C121", "T27")
@pytest.mark.parametrize("command", VERBS)
def test_a_verb_does_it_or_names_the_state_that_it_met(run, session, command):
    """Every verb on every state: done, or one line and exit code 1; no third way."""
    refusal, possible = VERBS[command]
    for state in STATES:
        job_id = add(session, state)
        said = run(*command, job_id)
        if state in possible:
            assert (said.code, said.err) == (0, "")
            assert str(job_id) in said.out
        else:
            assert (said.code, said.out) == (1, "")
            assert f"is {state}" in said.err
            assert f"[sqla_jobs:{refusal}]" in said.err
            assert len(said.err.splitlines()) == 1
            assert state_of(session, job_id) == state
    said = run(*command, NOBODY)
    assert said.code == 1
    assert "[sqla_jobs:job-not-found]" in said.err


def test_one_refused_id_does_not_keep_the_others_from_being_done(run, session):
    first, late, last = add(session), add(session, "dead"), add(session)
    said = run("jobs", "cancel", first, late, last)
    assert said.code == 1
    assert str(late) in said.err
    assert state_of(session, first) == state_of(session, last) == "cancelled"


def test_an_id_that_is_given_twice_is_changed_once(run, session):
    job_id = add(session)
    said = run("jobs", "cancel", job_id, job_id)
    assert (said.code, said.out) == (0, f"{job_id} is cancelled\n")


def test_json_tells_each_id(run, session):
    done, late = add(session), add(session, "dead")

    said = run("jobs", "cancel", done, late, "--json")

    assert said.code == 1
    document = said.json
    assert document["changed"] == [{"id": str(done), "state": "cancelled"}]
    [refused] = document["refused"]
    assert (refused["id"], refused["code"]) == (str(late), "not-cancellable")
    assert document["version"] == 1


# --- all that the options choose -----------------------------------------------------


def test_all_dead_jobs_that_the_options_choose_are_retried(run, session, small_batches):
    """More than one batch of them."""
    for i in range(10):
        died = NOW + timedelta(seconds=i // 4)
        add_job(session, "dead", queue="billing", finished_at=died)
    other = add(session, "dead")

    said = run("dead", "retry", "--all", "--queue", "billing", "--yes")

    assert said.code == 0
    assert said.out.splitlines()[-1] == "10 jobs are ready"
    assert states(session) == {"ready": 10, "dead": 1}
    assert state_of(session, other) == "dead"
    assert "1 job is discarded" in run("dead", "discard", "--all", "-y").out
    said = run("dead", "discard", "--all", "-y")
    assert (said.code, said.out) == (0, "No jobs match: nothing is changed.\n")


def test_cancel_all_tells_apart_what_waits_and_what_runs(run, session, small_batches):
    for state in ("ready", "ready", "waiting", "running", "running", "dead"):
        add_job(session, state, name="shop.import")
    add(session, "ready", name="shop.other")
    command = ("jobs", "cancel", "--all", "--name", "shop.import", "-y")

    said = run(*command, "--reason", "bad file")

    assert said.code == 0
    assert said.out.splitlines()[-2:] == [
        "3 jobs are cancelled",
        "2 jobs are running and were asked to stop",
    ]
    assert states(session) == {"cancelled": 3, "running": 2, "dead": 1, "ready": 1}
    reasons = session.scalars(
        select(Job.cancel_reason).where(Job.cancel_requested_at.is_not(None))
    )
    assert list(reasons) == ["bad file"] * 5
    assert run(*command).out == "No jobs match: nothing is changed.\n"


def test_jobs_retry_all_wants_to_know_which_finished_ones(run, session):
    """Else a queue's successes would run again with its dead letters."""
    for state in ("succeeded", "dead", "cancelled"):
        add_job(session, state)
    session.commit()
    for verb in ("retry", "discard"):
        said = run("jobs", verb, "--all", "-y")
        assert said.code == 2
        assert "--state" in said.err
    assert run("jobs", "retry", "--all", "--state", "cancelled", "-y").code == 0
    assert states(session) == {"succeeded": 1, "dead": 1, "ready": 1}


def test_people_see_what_it_would_be_and_are_asked(run, session, monkeypatch):
    ids = [add(session, key=f"k{i}") for i in range(8)]

    answer(monkeypatch, "n")
    said = run("jobs", "cancel", "--all")

    assert said.code == 1
    assert "8 jobs to cancel." in said.out
    assert all(str(job_id) in said.out for job_id in ids[3:])
    assert "and 3 more" in said.out
    assert "Nothing was changed." in said.err
    assert states(session) == {"ready": 8}
    answer(monkeypatch, "y")
    assert run("jobs", "cancel", "--all").code == 0
    assert states(session) == {"cancelled": 8}


def test_a_dry_run_changes_nothing(run, session):
    job_id = add(session)
    said = run("jobs", "cancel", "--all", "--dry-run")
    assert said.code == 0
    assert str(job_id) in said.out
    document = run("jobs", "cancel", "--all", "--dry-run", "--json").json
    assert (document["matched"], document["changed"]) == (1, 0)
    assert states(session) == {"ready": 1}


def test_where_nobody_can_be_asked_the_answer_must_be_given(run, session, monkeypatch):
    add(session)
    assert run("jobs", "cancel", "--all").code == 2
    monkeypatch.setattr(steer, "_asks", lambda: True)
    assert run("jobs", "cancel", "--all", "--json").code == 2
    assert states(session) == {"ready": 1}


def test_what_is_counted_is_bounded(run, session, monkeypatch):
    for _ in range(7):
        add_job(session)
    session.commit()
    monkeypatch.setattr("sqla_jobs.inspect.listing.COUNT_LIMIT", 4)
    monkeypatch.setattr("sqla_jobs.cli.tables.COUNT_LIMIT", 4)
    said = run("jobs", "cancel", "--all", "-y")
    assert ">3 jobs to cancel." in said.out
    assert said.out.splitlines()[-1] == "7 jobs are cancelled"


def test_jobs_that_come_while_it_runs_are_left(run, session, monkeypatch):
    """What was confirmed is what is changed, and it comes to an end."""
    for _ in range(2):
        add_job(session)
    session.commit()
    change = bulk.change_jobs

    def one_more(*args, **options):
        add(session)
        return change(*args, **options, limit=1)

    monkeypatch.setattr(steer, "change_jobs", one_more)
    assert run("jobs", "cancel", "--all", "-y").code == 0
    assert states(session)["cancelled"] == 2


@pytest.mark.needs("skip_locked")
def test_a_row_that_is_held_is_told_and_a_second_run_goes_on(run, session, engine):
    held, free = add(session, "dead"), add(session, "dead")
    with engine.connect() as holder:
        holder.execute(update(Job).where(Job.id == held).values(priority=1))
        said = run("dead", "retry", "--all", "-y")
        assert said.code == 1
        assert "1 job left" in said.err
        assert "1 job is ready" in said.out
    assert state_of(session, free) == "ready"
    assert "1 job is ready" in run("dead", "retry", "--all", "-y").out
    assert states(session) == {"ready": 2}


def test_an_interruption_tells_what_was_done_and_a_second_run_goes_on(
    run, session, monkeypatch
):
    for _ in range(5):
        add_job(session)
    session.commit()
    change = bulk.change_jobs
    calls = iter(range(9))

    def interrupted(*args, **options):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return change(*args, **options, limit=2)

    monkeypatch.setattr(steer, "change_jobs", interrupted)
    said = run("jobs", "cancel", "--all", "-y")
    assert said.code == 1
    assert "4 jobs are cancelled" in said.out
    assert "run it again" in said.err
    assert states(session) == {"cancelled": 4, "ready": 1}
    assert "1 job is cancelled" in run("jobs", "cancel", "--all", "-y").out


FILTERS = [
    ("--name", "a.b"),
    ("--queue", "billing"),
    ("--tenant", "7"),
    ("--key", "k_1"),
    ("--key-prefix", "k_"),
    ("--search", "k_1"),
    ("--by", "user:7"),
    ("--error", "50%_off"),
    ("--error", "Declined"),
]


@pytest.mark.parametrize("options", FILTERS)
def test_each_option_chooses_literally(run, session, options):
    """The same ones in lists and in verbs; capitals count."""
    for key, error in (("kx1", "50x_off"), ("K_1x", "50%_OFF"), ("Kx2", "declined")):
        other = add(session, "dead", key=key)
        add_attempt(session, other, 1, error=error, error_type=error)
    mine = add(
        session,
        "dead",
        name="a.b",
        queue="billing",
        tenant="7",
        key="k_1",
        enqueued_by="user:7",
    )
    # The last attempt counts, not an earlier one.
    add_attempt(session, other, 2, error="other")
    add_attempt(session, mine, 1, error="50", error_type="Timeout")
    add_attempt(session, mine, 2, error="sold 50%_off!", error_type="CardDeclined")
    session.commit()

    for command in (("jobs", "list"), ("dead", "list")):
        found = run(*command, "--json", *options).json["items"]
        assert [job["id"] for job in found] == [str(mine)]
    assert run("dead", "discard", "--all", "-y", *options).code == 0
    assert state_of(session, mine) is None
    assert states(session) == {"dead": 3}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--since", "90m"), ["new", "now"]),
        (("--since", "90m", "--until", "30m"), ["new"]),
        (("--until", "90m"), ["old"]),
        (("--since", "2020-01-01", "--until", "2020-01-02"), ["2020"]),
        (("--since", "2020-01-01T12:00+02:00", "--until", "2020-01-02"), ["2020"]),
        (("--since", "2020-01-01 10:00:01 UTC", "--until", "2020-01-02"), []),
    ],
)
def test_since_and_until_choose_by_time(run, session, options, found):
    """An instant belongs to what begins with it, not to what ends with it."""
    now = datetime.now(UTC)
    times = {
        "2020": datetime(2020, 1, 1, 10, tzinfo=UTC),
        "old": now - timedelta(hours=2),
        "new": now - timedelta(hours=1),
        "now": now,
    }
    for key, at in times.items():
        add_job(session, "dead", key=key, created_at=at, finished_at=at)
    session.commit()
    if options[0] == "--until":
        options += ("--since", "2021-01-01")
    for command in (("jobs", "list"), ("dead", "list")):
        items = run(*command, "--json", *options).json["items"]
        assert sorted(job["key"] for job in items) == found


@pytest.mark.parametrize(
    "arguments",
    [
        ("dead", "retry"),
        ("dead", "retry", NOBODY, "--all"),
        ("dead", "discard", NOBODY, "--queue", "x"),
        ("jobs", "cancel", NOBODY, "--state", "ready"),
        ("jobs", "cancel", NOBODY, "--dry-run"),
        ("jobs", "cancel"),
        ("jobs", "cancel", "--all", "-y", "--state", "dead"),
        ("jobs", "retry", "--all", "-y", "--state", "ready"),
        ("jobs", "retry", "7"),
        ("jobs", "list", "--state", "done"),
        ("jobs", "list", "--after", "7"),
        ("jobs", "list", "--limit", "0"),
        ("jobs", "list", "--since", "yesterday"),
        ("jobs", "list", "--since", "-3h"),
        ("jobs", "list", "--name", "a\udcff"),
        ("dead", "list", "--after", "7"),
        ("dead", "list", "--group", "--after", "7"),
        ("jobs", "nonsense"),
        ("queues", "pause"),
        ("queues", "--watch", "--every", "0s"),
        ("queues", "--watch", "--json"),
        ("workers", "--json", "--watch"),
        ("db", "ddl", "--dialect", "oracle"),
        ("nonsense",),
    ],
)
def test_a_command_that_is_written_wrong_exits_with_2(run, arguments):
    said = run(*arguments)
    assert said.code == 2
    assert said.out == ""
    assert "Traceback" not in said.err
    assert said.err


@pytest.mark.covers("C121")
def test_a_reader_that_leaves_is_no_error_to_look_at(session, env):
    """``sqla-jobs jobs list | head -1``."""
    for _ in range(900):
        add_job(session)
    session.commit()
    for options in ((), ("--json",)):
        command = ["-m", "sqla_jobs", "jobs", "list", "--limit", "900", *options]
        with subprocess.Popen(
            [sys.executable, *command],
            env={**env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
