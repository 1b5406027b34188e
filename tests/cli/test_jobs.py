"""``sqla-jobs jobs`` and ``dead``: what people see and what their verbs do."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from sqla_jobs import inspect
from sqla_jobs.cli import tables
from sqla_jobs.models import Job
from tests.support.rows import add_attempt, add_job

pytestmark = pytest.mark.each_kind

APP = "tests.cli.application:jobs"
NOBODY = UUID(int=404)


@pytest.fixture
def session(engine):
    with Session(engine) as session:
        yield session


@pytest.fixture
def narrow(monkeypatch):
    """80 columns, as a terminal has them."""
    monkeypatch.setattr(tables, "PIPE_WIDTH", 80)


def add(session, state="ready", **values):
    job_id = add_job(session, state, **values)
    session.commit()
    return job_id


def state_of(session, job_id):
    session.rollback()
    return session.scalar(select(Job.state).where(Job.id == job_id))


# --- list and show -------------------------------------------------------------------


def test_a_list_shows_each_id_whole_in_80_columns(run, session, narrow):
    """An id that is cut cannot be copied into the next command."""
    name = "billing." + "x" * 90
    ids = [
        add(session, name=name, tenant="t" * 60, key="k" * 90 + str(i))
        for i in range(3)
    ]

    said = run("jobs", "list")

    assert said.code == 0
    assert all(str(job_id) in said.out for job_id in ids)
    assert max(len(line) for line in said.out.splitlines()) <= 80
    assert "x" * 90 in said.out.replace("\n", "").replace(" ", "")


def test_a_list_in_a_pipe_has_one_line_per_job(run, session):
    job_id = add(session, name="billing.charge", queue="billing", tenant="7", key="k1")
    said = run("jobs", "list")
    [line] = [line for line in said.out.splitlines() if str(job_id) in line]
    assert line.split()[:7] == [
        *(str(job_id), "billing.charge", "billing", "7", "k1", "ready", "0/3")
    ]


def test_json_is_what_the_library_returns(run, session):
    job_id = add(session, "dead", name="shop.charge")
    add_attempt(session, job_id, 1)
    session.commit()

    def printed(*command):
        document = run(*command, "--json").json
        assert document.pop("version") == 1
        return document

    assert printed("jobs", "list") == inspect.jobs(session).as_dict()
    assert printed("dead", "list") == inspect.dead_letters(session).as_dict()
    assert printed("dead", "list", "--group") == inspect.dead_groups(session).as_dict()
    trace = inspect.job(session, job_id).as_dict()
    shown = printed("jobs", "show", job_id)
    assert shown.pop("seen_at") > trace.pop("seen_at")
    assert shown == trace


def test_pages_follow_each_other(run, session):
    ids = [str(add(session)) for _ in range(5)]
    first = run("jobs", "list", "--json", "--limit", 3).json
    second = run("jobs", "list", "--json", "--limit", 3, "--after", first["next"]).json
    seen = [job["id"] for page in (first, second) for job in page["items"]]
    assert seen == ids[::-1]
    assert second["next"] is None


def test_people_are_told_how_to_go_on(run, session):
    ids = [add(session) for _ in range(3)]
    said = run("jobs", "list", "--limit", 2)
    assert f"--after {ids[1]}" in said.err


@pytest.mark.parametrize(
    "options",
    [
        ("--state", "dead"),
        ("--name", "a.b"),
        ("--queue", "billing"),
        ("--tenant", "7"),
        ("--key", "k_1"),
        ("--search", "k_1"),
    ],
)
def test_a_filter_is_literal(run, session, options):
    for key in ("kx1", "k%1"):
        add(session, key=key)
    values = {"name": "a.b", "queue": "billing", "tenant": "7", "key": "k_1"}
    mine = add(session, "dead", **values)
    found = run("jobs", "list", "--json", *options).json["items"]
    assert [job["id"] for job in found] == [str(mine)]


def test_an_empty_list_says_so(run):
    assert "No jobs." in run("jobs", "list").out
    assert "No dead letters." in run("dead", "list").out
    empty = {"version": 1, "items": [], "next": None, "unreadable": []}
    assert run("jobs", "list", "--json").json == empty


def test_show_tells_all_attempts_and_the_last_errors(run, session):
    job_id = add(session, "dead", attempt=5, enqueued_by="user:7", cancel_reason=None)
    for number in range(1, 6):
        add_attempt(session, job_id, number, outcome="failed")
    session.commit()

    said = run("jobs", "show", job_id)

    assert "user:7" in said.out
    assert "2026-11-30 12:00:00 UTC" in said.out
    assert said.out.count("host-1:42") == 5
    assert "attempt 5 failed" in said.out
    assert "attempts 1 to 5, the last one: ValueError" in said.out
    assert "attempt 1 failed" not in said.out


def test_show_tells_each_cause_once_and_where_the_others_are(run, session):
    job_id = add(session, "dead", attempt=6)
    causes = ["no disk 1", "no disk 2", "no net", "no mail", "no luck 5", "no luck 6"]
    for number, cause in enumerate(causes, 1):
        add_attempt(session, job_id, number, error=cause)
    session.commit()

    said = run("jobs", "show", job_id).out

    labels = [line for line in said.splitlines() if line.startswith("attempt")][1:]
    assert labels == [
        "attempt 3: ValueError",
        "attempt 4: ValueError",
        "attempts 5 to 6, the last one: ValueError",
    ]
    assert "no luck 6" in said
    assert "no luck 5" not in said
    assert "no disk" not in said
    assert "Earlier errors: see --json." in said
    assert "no disk 1" in run("jobs", "show", job_id, "--json").out
    assert "--app" in said


def test_a_row_that_cannot_be_read_is_named_below_the_others(run, session, engine):
    good, bad = add(session), add(session)
    rotten = {"postgresql": "infinity", "sqlite": "some day"}[engine.dialect.name]
    stored = bad.hex if engine.dialect.name == "sqlite" else str(bad)
    session.execute(
        text("UPDATE sqla_job SET run_at = :at WHERE id = :id"),
        {"at": rotten, "id": stored},
    )
    session.commit()

    said = run("jobs", "list")
    assert said.code == 0
    assert str(good) in said.out
    assert f"Job {bad} cannot be read" in said.err
    document = run("jobs", "list", "--json").json
    assert [row["id"] for row in document["unreadable"]] == [str(bad)]
    shown = run("jobs", "show", bad, "--json")
    assert (shown.code, shown.json["error"]["code"]) == (1, "row-unreadable")


@pytest.mark.covers("T66")
def test_show_masks_what_the_declaration_calls_sensitive(run, session):
    payload = {"order": 2**63 + 1, "card": "4111-1111"}
    job_id = add(session, "succeeded", name="shop.charge", input=payload)

    for options in ((), ("--json",)):
        with_app = run("jobs", "show", job_id, "--app", APP, *options)
        assert str(2**63 + 1) in with_app.out
        assert "***" in with_app.out
        without = run("jobs", "show", job_id, *options)
        assert "order" not in without.out.replace("shop_order", "")
        for said in (with_app, without):
            assert "4111" not in said.out + said.err


NASTY = "\x1b[2J\x1b]8;;http://x\x07\u202e[bold red]\r\nforged\x9b"


@pytest.mark.covers("C127")
def test_text_from_rows_cannot_steer_the_terminal(run, session, monkeypatch):
    """Control characters are shown, brackets are no markup."""
    monkeypatch.setattr(tables, "PIPE_WIDTH", 1000)  # no cell is folded
    job_id = add(
        session, "dead", name=NASTY, key=NASTY, tenant=NASTY, enqueued_by=NASTY
    )
    add_attempt(session, job_id, 1, error=NASTY, error_type=NASTY, worker=NASTY)
    session.commit()

    for command in (
        ("jobs", "list"),
        ("jobs", "list", "--json"),
        ("jobs", "show", job_id),
        ("jobs", "show", job_id, "--json"),
        ("dead", "list"),
        ("dead", "list", "--json"),
    ):
        said = run(*command)
        assert said.code == 0
        assert not {*said.out} & {*"\x1b\x07\u202e\r\x9b"}
        assert "[bold red]" in said.out
    assert run("jobs", "show", job_id, "--json").json["name"] == NASTY


@pytest.mark.covers("T66")
def test_what_is_declared_sensitive_stays_hidden_everywhere(run, session):
    """Lists, groups, previews and JSON never load an input."""
    payload = {"order": 1, "card": "4111-1111"}
    job_id = add(session, "dead", name="shop.charge", input=payload)
    for command in (
        ("jobs", "list"),
        ("dead", "list"),
        ("dead", "list", "--group"),
        ("dead", "retry", "--all", "--dry-run"),
        ("jobs", "show", job_id),
        ("jobs", "show", job_id, "--app", APP),
    ):
        for options in ((), ("--json",)):
            said = run(*command, *options)
            assert said.code == 0
            assert "4111" not in said.out.replace(str(job_id), "") + said.err


@pytest.mark.covers("C118", "C125")
def test_rows_that_nobody_declared_are_shown_and_never_imported(run, session):
    """Names that look like code are text."""
    names = ["os.system", "builtins:eval", "tests.cli.trap:boom"]
    ids = [add(session, "dead", name=name, input={"py/object": name}) for name in names]
    assert all(name in run("jobs", "list").out for name in names)
    for job_id in ids:
        assert run("jobs", "show", job_id, "--app", APP).code == 0


@pytest.mark.covers("C121")
def test_a_refusal_in_json_is_json(run, session):
    said = run("jobs", "show", NOBODY, "--json")
    assert said.code == 1
    error = json.loads(said.out)["error"]
    assert error["code"] == "job-not-found"
    assert str(NOBODY) in error["message"]


def test_missing_tables_name_the_command_that_makes_them(run, session):
    session.execute(text("DROP TABLE sqla_meta"))
    session.commit()
    said = run("jobs", "list")
    assert said.code == 1
    assert "sqla-jobs db ddl" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "command",
    [
        ("jobs", "list"),
        ("dead", "list", "--group"),
        ("queues",),
        ("workers",),
        ("queues", "--watch"),
        ("jobs", "cancel", "--all", "--dry-run"),
    ],
)
def test_a_look_waits_for_no_writer(run, session, engine, command):
    """Not even where there is one writer at a time, whose turn may last."""
    add(session)
    with engine.connect() as writer:
        writer.execute(update(Job).values(priority=1))
        assert run(*command).code == 0
