"""``sqla-jobs backfill``: each verb, and what it refuses."""

from __future__ import annotations

import json
import re

import pytest
from sqlalchemy import insert, select, update

from sqla_jobs import backfills
from sqla_jobs.backfills import ledger
from sqla_jobs.backfills.progress import Progress
from sqla_jobs.cli.backfill_run import told
from sqla_jobs.models import Backfill, BackfillEvent
from tests.backfills.migrations import stamp, write_folder
from tests.backfills.shop import jobs
from tests.backfills.tables import Price
from tests.cli.conftest import Said, run  # noqa: F401 - a fixture

pytestmark = pytest.mark.each_kind


@pytest.fixture
def folder(tmp_path, engine, monkeypatch):
    folder = write_folder(
        tmp_path / "migrations", aaaa=(None, None), bbbb=("aaaa", None)
    )
    stamp(engine, "bbbb")
    monkeypatch.setenv("SQLA_JOBS_ALEMBIC", str(folder))
    return folder


@pytest.fixture
def backfill(run, folder, prices):  # noqa: F811 - the fixture
    def call(*arguments) -> Said:
        return run("backfill", *arguments, "--app", "tests.backfills.shop:jobs")

    return call


def add_bad_row(engine):
    with engine.begin() as connection:
        connection.execute(insert(Price), {"id": 99, "amount": 10_000, "changes": 1})


def test_all_are_run_in_the_order_of_their_migrations(backfill, Session):
    assert backfill("check").code == 1

    said = backfill("run", "--all")

    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        "counted is done: 55 rows in this run",
        "cents is done: 55 rows in this run",
    ]
    assert backfill("run", "--all").out == "All backfills are done.\n"
    assert backfill("check").code == 0
    with Session() as session:
        assert session.scalars(select(Price.cents).where(Price.id == 7)).one() == 700


def test_the_list_tells_how_far_each_is(backfill, Session):
    backfill("run", "cents")
    lines = backfill("list").out.splitlines()
    assert lines[1].split() == ["cents", "done", "100.0", "%", "55", "-", "-", "0"]
    assert lines[2].split() == ["counted", "never", "-", "0", "-", "-", "0"]

    found = backfill("list", "--json").json["backfills"]
    assert [each["status"] for each in found] == ["done", "never"]
    assert found[0]["percent"] == 100
    assert backfill("status", "cents", "--json").json["rows_done"] == 55
    assert "finished" in backfill("status", "cents").out


def test_as_json_a_run_prints_one_document(backfill):
    said = backfill("run", "cents", "--json")
    done = {"name": "cents", "status": "done", "rows": 55, "failed": 0}
    assert said.json["runs"] == [done]
    assert said.err == ""


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("run", "nothing"), 1, "there are: cents, counted"),
        (("status", "nothing"), 1, "backfill-unknown"),
        (("failures", "nothing"), 1, "backfill-unknown"),
        (("pause", "nothing"), 1, "backfill-unknown"),
        (("run",), 2, "Give names, or --all"),
        (("run", "cents", "--all"), 2, "Give names, or --all"),
        (("set", "cents"), 2, "batch_size"),
        (("accept", "cents"), 2, "--reason"),
    ],
)
def test_what_is_refused_says_why_and_leaves_no_trace(backfill, arguments, code, says):
    said = backfill(*arguments)
    assert said.code == code
    assert says in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("verb", [("check",), ("baseline", "--reason", "new")])
def test_all_backfills_are_those_of_an_application(run, folder, prices, verb):  # noqa: F811 - the fixture
    """Without one there are none, and all of none are done."""
    said = run("backfill", *verb)
    assert said.code == 2
    assert "--app" in said.err


def test_a_migration_that_is_missing_is_named_with_its_command(backfill, engine):
    stamp(engine, "aaaa")
    said = backfill("run", "cents", "--json")
    assert said.code == 1
    assert said.json["error"]["code"] == "backfill-migration-pending"
    assert "`alembic upgrade bbbb`" in said.err


def test_without_migrations_nothing_is_run(backfill, tmp_path):
    said = backfill("run", "cents", "--alembic", tmp_path / "nowhere")
    assert said.code == 1
    assert "--alembic" in said.err


def test_a_second_run_is_refused(backfill):
    backfill("run", "cents")
    said = backfill("run", "cents")
    assert said.code == 1
    assert "is done: nothing is left to do" in said.err


def test_rows_that_failed_are_shown_and_accepted(backfill, engine, Session):
    add_bad_row(engine)

    said = backfill("run", "cents")
    assert said.code == 1
    assert "sqla-jobs backfill failures cents" in said.err
    assert "10000 is too much" in backfill("failures", "cents").out
    [row] = backfill("failures", "cents", "--json").json["failures"]
    assert json.loads(row["key"]) == [["int", 99]]
    assert backfill("list", "--json").json["backfills"][0]["failures"] == 1

    assert backfill("accept", "cents", "--reason", "a test").code == 0
    assert backfill("run", "cents").code == 0
    with Session() as session:
        accepted = session.scalars(select(BackfillEvent).filter_by(kind="accept")).one()
    assert accepted.detail == "a test"


def test_rows_that_failed_are_tried_again(backfill, engine):
    add_bad_row(engine)
    assert backfill("run", "cents").code == 1
    with engine.begin() as connection:
        connection.execute(update(Price).values(amount=1))

    assert backfill("retry-failures", "cents").code == 0
    assert backfill("run", "cents").out == "cents is done: 1 rows in this run\n"


def test_it_is_steered_from_elsewhere(backfill, engine, Session):
    add_bad_row(engine)
    backfill("run", "cents")

    assert backfill("pause", "cents", "--by", "ops").out == "cents is paused\n"
    assert backfill("set", "cents", "--batch-size", "7").code == 0
    assert "batch size set" in backfill("status", "cents").out
    assert backfill("cancel", "cents").out == "cents is cancelled\n"
    said = backfill("run", "cents")
    assert (said.code, "backfill resume cents" in said.err) == (1, True)
    assert backfill("resume", "cents", "--from-start").code == 0
    with Session() as session:
        row = session.get_one(Backfill, "cents")
    assert (row.status, row.batch_size, row.cursor) == ("pending", 7, None)


def test_a_new_database_has_nothing_to_backfill(backfill):
    said = backfill("baseline", "--reason", "create_all")
    assert said.out == "Marked as skipped: cents, counted\n"
    assert backfill("check").code == 0
    assert backfill("run", "--all").out == "All backfills are done.\n"


def test_a_terminated_run_pauses_after_its_batch(processes, folder, prices, Session):
    options = ("--app", "tests.backfills.shop:jobs", "--alembic", str(folder))
    with Session.begin() as session:
        ledger.register(session, jobs.backfills["cents"], "price")
        backfills.set_backfill_pace(session, "cents", rate=5)
    command = ("-m", "sqla_jobs", "backfill", "run", "cents")
    running = processes.python(*command, *options)
    _wait_for_rows(Session)
    running.terminate()  # While it waits for its pace.

    assert running.wait() == 1, running.output
    assert re.search(r"cents is paused: \d+ rows in this run", running.output)
    with Session() as session:
        row = session.get_one(Backfill, "cents")
    assert row.status == "paused"
    assert 0 < row.rows_done < len(prices)


def _wait_for_rows(Session):
    from tests.support.waiting import wait_until

    def some():
        with Session() as session:
            return session.get_one(Backfill, "cents").rows_done

    wait_until(some, timeout=30)


def test_the_numbers_beside_the_bar():
    assert told(Progress(50, 200, 25.0), 2) == (
        "50 of 200 rows, 25.0 %, 25 rows/s, 6.0s to go, 2 failed"
    )
    assert told(Progress(5), 0) == "5 rows"
    assert told(Progress(5, 5, None, finished=True), 0) == "5 of 5 rows, 100.0 %"
