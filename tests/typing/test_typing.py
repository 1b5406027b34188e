"""The public types, as users meet them: both checkers, strict, over users' code.

``samples/`` is what three teams write, and ``negative.py`` what they must not be able to
write. They are checked from outside the package, without this project's settings.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent / "samples"
ROOT = Path(__file__).parents[2]
NEGATIVE = "negative.py"

# (file, line) -> what the checker says about it.
Findings = dict[tuple[str, int], list[str]]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user's modules would be: a folder of its own, the library on the path."""
    folder = tmp_path_factory.mktemp("typing") / "app"
    shutil.copytree(SAMPLES, folder)
    return folder


def _run(app: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=app, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def mypy(app: Path) -> Findings:
    settings = app / "mypy.ini"
    settings.write_text(f"[mypy]\nstrict = true\nmypy_path = {ROOT}\n", "utf-8")
    files = sorted(path.name for path in app.glob("*.py"))
    done = _run(app, "mypy", "--python-version=3.11", "--hide-error-context", *files)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    assert re.search(r"checked (\d+) source files", done.stdout), done.stdout
    found: Findings = {}
    for line in done.stdout.splitlines():
        told = re.fullmatch(r"(\w+\.py):(\d+): error: (.*)", line)
        if told is not None:
            found.setdefault((told[1], int(told[2])), []).append(told[3])
    return found


@pytest.fixture(scope="module")
def pyright(app: Path) -> Findings:
    options = {
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
    }
    (app / "pyrightconfig.json").write_text(json.dumps(options), "utf-8")
    done = _run(app, "pyright", f"--pythonpath={sys.executable}", "--outputjson")
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(app.glob("*.py")))
    found: Findings = {}
    for each in report["generalDiagnostics"]:
        where = (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        found.setdefault(where, []).append(each["message"])
    return found


@pytest.fixture(params=["mypy", "pyright"])
def findings(request: pytest.FixtureRequest) -> Findings:
    found: Findings = request.getfixturevalue(request.param)
    return found


# Both checkers read SQLAlchemy and a few frameworks without a cache.
@pytest.mark.timeout(600)
def test_what_users_write_has_no_errors(findings: Findings) -> None:
    wrong = {where: told for where, told in findings.items() if where[0] != NEGATIVE}
    assert wrong == {}


@pytest.mark.timeout(600)
def test_exactly_the_mistakes_that_are_marked_are_errors(findings: Findings) -> None:
    lines = (SAMPLES / NEGATIVE).read_text("utf-8").splitlines()
    marked = {
        number for number, line in enumerate(lines, 1) if re.search(r"  # E\b", line)
    }
    assert len(marked) > 20
    refused = {
        number: told for (file, number), told in findings.items() if file == NEGATIVE
    }
    assert sorted(marked - refused.keys()) == [], "not refused"
    assert {number: refused[number] for number in refused.keys() - marked} == {}


def test_the_samples_are_also_right_when_they_run() -> None:
    """Declarations are checked at import as well."""
    code = (
        "import user1_fastapi, user2_flask\n"
        "print(sorted([*user1_fastapi.jobs.specs, *user2_flask.jobs.specs]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=SAMPLES,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(
        [
            "billing.charge_order",
            "cleanup",
            "mail.welcome",
            "mails.count",
            "reports.daily",
            "reports.dead",
            "reports.fan_out",
            "search.index",
            "users.count",
        ]
    ), done.stderr
