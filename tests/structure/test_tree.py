"""The tree agrees with what is written about it, and with the wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile

from tests.support.tree import PACKAGE, ROOT, modules, project_files

MOST_TYPE_IGNORES = 10
TYPE_IGNORE = re.compile(r"#\s*type:\s*ignore(?P<rest>.*)")
NOQA = re.compile(r"#\s*noqa\b(?P<rest>.*)", re.IGNORECASE)
WITH_CODE_AND_REASON = re.compile(r"\[[a-z, -]+\]\s+#\s*\S+ \S+")
WITH_CODES_AND_REASON = re.compile(r":\s*[A-Z]+\d+(, ?[A-Z]+\d+)*\s+(#|-)\s*\S+")
# Spelled in pieces, so that this file does not find itself.
MACHINE_PATH = re.compile(r"(^|[^.])/" + r"(work|root)/", re.MULTILINE)


def comments(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    return [
        (f"{module.name}:{number}", match["rest"])
        for module in modules()
        for number, line in enumerate(module.lines, 1)
        if (match := pattern.search(line))
    ]


def test_at_most_ten_type_ignores_each_with_its_code_and_reason():
    found = comments(TYPE_IGNORE)
    assert [at for at, rest in found if not WITH_CODE_AND_REASON.match(rest)] == []
    assert len(found) <= MOST_TYPE_IGNORES, [at for at, _ in found]


def test_every_ignored_lint_rule_is_named_and_has_its_reason():
    found = comments(NOQA)
    assert [at for at, rest in found if not WITH_CODES_AND_REASON.match(rest)] == []


def test_architecture_md_names_exactly_the_modules_that_exist():
    """Each module by its path in the package, ``queue/claim.py``; no others."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    named = set(re.findall(r"(?<![\w/.-])(?:[a-z_]+/)*[a-z_]+\.py\b", text))
    named = {name.removeprefix("sqla_jobs/") for name in named}
    exist = {m.name for m in modules() if m.path.name != "__init__.py"}
    gone = {n for n in named if not (PACKAGE / n).is_file() and not (ROOT / n).exists()}
    assert (exist - named, gone) == (set(), set())


def test_no_file_knows_the_machine_it_was_written_on():
    found = []
    for path in project_files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        if MACHINE_PATH.search(text):
            found.append(path.relative_to(ROOT).as_posix())
    assert found == []


def test_the_wheel_holds_every_file_of_the_package_and_the_pytest_plugin(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    tree = {
        path.relative_to(ROOT).as_posix()
        for path in project_files()
        if path.is_relative_to(PACKAGE)
    }
    templates = {
        f"sqla_jobs/{path.relative_to(ROOT).as_posix()}"
        for path in project_files()
        if path.is_relative_to(ROOT / "alembic_templates")
    }
    assert packed == tree | templates | {"sqla_jobs_pytest.py"}
