"""Which application and which database: what is nearest wins, and errors help."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from sqla_jobs.cli import load
from tests.support.rows import add_job

ROOT = Path(__file__).parents[2]
SESSION = "tests.cli.application:Session"


@pytest.fixture
def shell(pg_url, tmp_path):
    """Run ``python -m sqla_jobs`` in a folder of its own."""
    url = pg_url.render_as_string(hide_password=False)

    def run(*arguments, file="", **env):
        (tmp_path / "pyproject.toml").write_text(file)
        given = {k: v for k, v in os.environ.items() if not k.startswith("SQLA_JOBS_")}
        return subprocess.run(
            [sys.executable, "-m", "sqla_jobs", *map(str, arguments)],
            cwd=tmp_path,
            env={**given, "PYTHONPATH": str(ROOT), "SHOP_URL": url, **env},
            capture_output=True,
            text=True,
        )

    return run


def toml(**options):
    lines = [f"{name} = {value!r}" for name, value in options.items()]
    return "\n".join(["[tool.sqla-jobs]", *lines])


@pytest.mark.parametrize("kind", ["Session", "AsyncSession"])
def test_a_session_factory_names_the_database(shell, engine, kind):
    """An async one is served, too: the verbs have connections of their own."""
    with Session(engine) as session, session.begin():
        job_id = add_job(session)
    said = shell("jobs", "list", "--session", f"tests.cli.application:{kind}")
    assert said.returncode == 0, said.stderr
    assert str(job_id) in said.stdout


def test_both_factories_may_be_given(shell):
    both = f"{SESSION} tests.cli.application:AsyncSession"
    assert shell("queues", SQLA_JOBS_SESSION=both).returncode == 0
    file = toml(session=both.split())
    assert shell("queues", file=file).returncode == 0


@pytest.mark.covers("C120")
def test_the_nearest_source_wins(shell, pg_url):
    """Command line, then environment, then file; an empty value was not given."""
    good = pg_url.render_as_string(hide_password=False)
    bad = "postgresql://127.0.0.1:1/none"
    url, factory = "--database-url", "--session"
    for arguments, env, file, works in (
        ((), {}, toml(session=SESSION), True),
        ((), {}, toml(session="nowhere:x"), False),
        ((), {"SQLA_JOBS_SESSION": SESSION}, toml(session="nowhere:x"), True),
        ((), {"SQLA_JOBS_SESSION": ""}, toml(session=SESSION), True),
        ((), {"SQLA_JOBS_DATABASE_URL": good}, toml(session="nowhere:x"), True),
        ((), {"SQLA_JOBS_DATABASE_URL": ""}, toml(session=SESSION), True),
        ((factory, SESSION), {"SQLA_JOBS_DATABASE_URL": bad}, "", True),
        ((url, good), {"SQLA_JOBS_SESSION": "nowhere:x"}, "", True),
        ((url, bad), {"SQLA_JOBS_SESSION": SESSION}, "", False),
        ((), {}, "", False),
    ):
        said = shell("workers", *arguments, file=file, **env)
        assert (said.returncode == 0) is works, (arguments, env, file, said.stderr)
        assert "Traceback" not in said.stderr


def test_the_folder_one_stands_in_can_be_imported_from(shell, tmp_path):
    code = "from sqla_jobs import Jobs\njobs = Jobs()\n"
    (tmp_path / "my_shop.py").write_text(code)
    said = shell("worker", "--app", "my_shop:jobs", "--database-url", "x")
    assert "no database URL" in said.stderr


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("shop", ["MODULE:ATTRIBUTE"]),
        (":jobs", ["MODULE:ATTRIBUTE"]),
        ("shop:", ["MODULE:ATTRIBUTE"]),
        ("no_such_module:jobs", ["no module 'no_such_module'"]),
        ("tests.cli.nothing:jobs", ["no module 'tests.cli.nothing'"]),
        ("tests.cli.application:job", ["no 'job'", "jobs"]),
        ("tests.cli.application:answer", ["int", "Jobs registry", "jobs"]),
    ],
)
def test_an_app_that_cannot_be_found_says_what_is_there(run, place, words):
    said = run("worker", "--app", place)
    assert said.code == 2
    flat = " ".join(said.err.split())
    assert all(word in flat for word in words), said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "import no_such_thing",
            "ModuleNotFoundError: No module named 'no_such_thing'",
        ),
        ("x = 1\nraise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_module_that_fails_says_why_and_where(shell, tmp_path, code, words):
    """What its author needs, and not "there is no such module"."""
    (tmp_path / "broken_shop.py").write_text(code)
    said = shell("worker", "--app", "broken_shop:jobs")
    assert said.returncode == 2
    assert words in said.stderr
    assert "broken_shop.py" in said.stderr


def test_a_factory_that_is_none_is_refused(run):
    said = run("jobs", "list", "--session", "tests.cli.application:answer")
    assert said.code == 2
    assert "sessionmaker" in said.err


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("hunter2", 2),
        ("nosuchdb://me:hunter2@127.0.0.1/x", 2),
        ("postgresql+asyncpg://me:hunter2@127.0.0.1:1/x", 1),
        ("postgresql://me:hunter2@127.0.0.1:1/x", 1),
    ],
)
def test_a_database_that_cannot_be_used_is_told_without_its_password(run, given, code):
    said = run("jobs", "list", "--database-url", given)
    assert said.code == code
    assert "hunter2" not in said.out + said.err
    assert "Traceback" not in said.err


def test_the_kind_of_a_factory_is_seen_without_connecting():
    from tests.cli import application

    assert not load.is_async(application.Session)
    assert load.is_async(application.AsyncSession)
    assert not load.is_async(partial(application.Session))
    assert load.is_async(partial(application.AsyncSession))
    assert not load.is_async(scoped_session(application.Session))
    assert load.is_async(async_scoped_session(application.AsyncSession, lambda: 1))


@pytest.mark.covers("C121")
def test_a_reader_that_goes_away_is_no_error_to_read_about(shell, engine):
    """As in ``sqla-jobs jobs list | head -1``."""
    with Session(engine) as session, session.begin():
        for _ in range(900):
            add_job(session, name="n" * 190)
    head = f"{sys.executable} -m sqla_jobs jobs list --limit 900 | head -1"
    env = {"PYTHONPATH": str(ROOT), **os.environ}
    url = engine.url.render_as_string(hide_password=False)
    said = subprocess.run(
        ["/bin/sh", "-c", head],
        env={**env, "SQLA_JOBS_DATABASE_URL": url},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert said.stdout.startswith("id")
    assert said.stderr == ""
