"""The pytest plugin: fixtures where they are asked for, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

import sqla_jobs_pytest
from tests.support.plugin import run_suite
from tests.support.tree import ROOT

SUITE = """
from sqla_jobs import clock
from sqla_jobs.testing import Clock

def test_frozen(sqla_jobs_clock: Clock) -> None:
    sqla_jobs_clock.advance("1h")
    assert clock.frozen_at() == sqla_jobs_clock.now

def test_not_asked_for():
    assert clock.frozen_at() is None
"""


@pytest.fixture
def run(tmp_path):
    return lambda *arguments: run_suite(*arguments, cwd=tmp_path, env={})


def test_the_clock_is_frozen_only_for_the_test_that_asks(run, tmp_path):
    (tmp_path / "test_it.py").write_text(SUITE)
    done = run("-q")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_nothing_of_it_is_automatic(run, tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(): pass")
    done = run("--setup-show")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "sqla_jobs" not in done.stdout.split("test_it.py", 1)[1]


def test_a_suite_that_does_not_ask_pays_nothing(run, tmp_path):
    """The package is not even imported."""
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    assert 'sqla_jobs_pytest' in sys.modules\n"
        "    assert 'sqla_jobs' not in sys.modules\n"
        "    assert 'sqlalchemy' not in sys.modules\n"
    )
    done = run("-q", "-p", "no:hypothesispytest")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_every_fixture_is_listed_with_what_it_does(run, tmp_path):
    (tmp_path / "test_it.py").write_text("")
    done = run("--fixtures", "-q")
    assert "sqla_jobs_clock" in done.stdout, done.stdout + done.stderr
    assert "Freeze the queue's time for this test" in done.stdout


def test_pytest_finds_it_by_the_projects_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {
        "sqla_jobs": sqla_jobs_pytest.__name__
    }


def test_the_kit_itself_needs_no_pytest():
    script = "import sys, sqla_jobs.testing; assert 'pytest' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    script = (
        "import sys; sys.modules['greenlet'] = None\n"
        "from sqla_jobs.testing import drain, run_job, Clock"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
