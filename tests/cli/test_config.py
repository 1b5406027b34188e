"""``sqla-jobs config``: the setting that wins, and where it was given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
URL = "postgresql+psycopg://me:hunter2@host/shop?password=hunter2&sslmode=require"
SHOWN = "postgresql+psycopg://me:***@host/shop?password=***&sslmode=***"


@pytest.fixture
def shell(tmp_path):
    """Run ``python -m sqla_jobs`` in a folder of its own."""

    def run(*arguments, file="", **env):
        (tmp_path / "pyproject.toml").write_text(file)
        given = {k: v for k, v in os.environ.items() if not k.startswith("SQLA_JOBS_")}
        done = subprocess.run(
            [sys.executable, "-m", "sqla_jobs", "config", *arguments],
            cwd=tmp_path,
            env={**given, "PYTHONPATH": str(ROOT), **env},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "hunter2" not in done.stdout + done.stderr
        return done.stdout

    return run


FILE = '[tool.sqla-jobs]\napp = "file:a"\nsession = ["file:s", "file:t"]\n'
ENV = {"SQLA_JOBS_APP": "env:a", "SQLA_JOBS_SESSION": "env:s"}
FLAGS = ("--app", "flag:a", "--session", "flag:s")


@pytest.mark.covers("C120")
@pytest.mark.parametrize(
    ("flags", "env", "file", "app", "session"),
    [
        (FLAGS, ENV, FILE, ("flag:a", "command line"), ("flag:s", "command line")),
        (
            (),
            ENV,
            FILE,
            ("env:a", "environment (SQLA_JOBS_APP)"),
            ("env:s", "environment (SQLA_JOBS_SESSION)"),
        ),
        (
            (),
            {},
            FILE,
            ("file:a", "pyproject.toml"),
            ("file:s file:t", "pyproject.toml"),
        ),
        # An empty variable was not given.
        (
            (),
            dict.fromkeys(ENV, ""),
            FILE,
            ("file:a", "pyproject.toml"),
            ("file:s file:t", "pyproject.toml"),
        ),
        ((), {}, "", (None, "default"), (None, "default")),
        (
            FLAGS[:2],
            ENV,
            "",
            ("flag:a", "command line"),
            ("env:s", "environment (SQLA_JOBS_SESSION)"),
        ),
    ],
)
def test_the_nearest_one_wins_for_each_setting(shell, flags, env, file, app, session):
    found = json.loads(shell(*flags, "--json", file=file, **env))["settings"]
    assert (found["app"]["value"], found["app"]["source"]) == app
    assert (found["session"]["value"], found["session"]["source"]) == session
    assert found["schema"] == {"value": None, "source": "default"}


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_no_secret_of_the_url_is_shown(shell, options):
    assert SHOWN in shell(*options, SQLA_JOBS_DATABASE_URL=URL)
    assert "not a URL" in shell(*options, "--database-url", "hunter2")


def test_the_schema_tells_its_source_as_well(shell):
    file = '[tool.sqla-jobs]\nschema = "f"\n'
    found = json.loads(shell("--json", file=file))["settings"]["schema"]
    assert found == {"value": "f", "source": "pyproject.toml"}
    found = json.loads(shell("--json", file=file, SQLA_JOBS_SCHEMA="e"))
    source = "environment (SQLA_JOBS_SCHEMA)"
    assert found["settings"]["schema"] == {"value": "e", "source": source}


def test_the_version_is_told_where_nothing_is_installed(monkeypatch, capsys):
    """From a checkout, a zip file or a vendored copy."""
    hidden = (
        "import importlib.metadata as m\n"
        "def gone(name): raise m.PackageNotFoundError(name)\n"
        "m.version = gone\n"
        "import sys; from sqla_jobs.cli import main; sys.exit(main(['--version']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "sqla-jobs from a checkout\n"
