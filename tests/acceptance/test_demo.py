"""The demo of examples/weather, as a user runs it: one process, its output, its code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What the files hold, counted apart from the demo: a year of hours at two stations,
# without the hour that daylight saving took from each.
DAYS = 2 * 365
READINGS = 2 * (365 * 24 - 1)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("database", "more"),
    [("postgresql", ()), ("sqlite", ()), ("postgresql", ("--restart",))],
)
def test_the_demo_kills_a_worker_and_proves_that_nothing_was_lost(database, more):
    """With ``--restart`` the server crashes, too, while the importer is at work."""
    demo = subprocess.run(
        [
            *(sys.executable, "-m", "examples.weather.demo"),
            *("--json", "--db", database, *more),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )

    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    facts = json.loads(demo.stdout)  # Nothing but JSON stands there.
    assert facts["ok"] is True
    assert facts["database"].lower().startswith(database)
    assert [check["says"] for check in facts["checks"] if not check["holds"]] == []
    assert len(facts["checks"]) == 7

    assert facts["stations"] == 2
    assert facts["days_imported"] == DAYS
    assert facts["readings"] == READINGS
    assert facts["summaries"] == DAYS - 1
    assert facts["jobs"] == 2 * DAYS
    assert facts["jobs_succeeded"] == 2 * DAYS - 1
    assert facts["jobs_dead"] == 1
    assert facts["jobs_retried"] > 50  # One in eight of 730.
    assert facts["jobs_rescued"] >= facts["killed"]["jobs_held"] > 0
    assert facts["jobs_per_second_peak"] >= facts["jobs_per_second"] > 0

    [letter] = facts["dead_letters"]
    assert letter["job"] == "weather.summarise_day"
    assert letter["key"] == "seattle:2010-01-04"
    assert letter["attempts"] == 3
    assert "451" in letter["error"]
