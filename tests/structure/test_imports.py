"""What importing the library loads, and what its code never uses."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from tests.support.tree import ROOT, Module, modules

# Drivers, extras, and the command line's own libraries: a web process that only
# enqueues pays for none of them.
NOT_LOADED = (
    "aiosqlite",
    "asyncpg",
    "click",
    "fastapi",
    "flask",
    "flask_sqlalchemy",
    "greenlet",
    "psycopg",
    "psycopg2",
    "pydantic",
    "rich",
    "sqlalchemy.ext.asyncio",
    "sqlmodel",
    "uvloop",
)

SCRIPT = """
import json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None  # import NAME now raises ModuleNotFoundError
import sqla_jobs
for name in sqla_jobs.__all__:
    getattr(sqla_jobs, name)
print("imported")
"""

EXECUTE = {"eval", "exec", "compile", "__import__"}
UNPICKLE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml"}


def test_import_works_with_the_core_dependencies_alone():
    """Neither a driver nor greenlet nor any extra is needed to import all names."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, json.dumps(NOT_LOADED)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("imported\n", 0), ran.stderr


def test_import_loads_nothing_of_the_extras():
    script = "import sys, sqla_jobs; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True
    )
    assert set(NOT_LOADED) & set(ran.stdout.split()) == set()
    assert "sqla_jobs" in ran.stdout.split()


@pytest.mark.covers("C125")
def test_rows_can_never_become_code():
    """No unpickling and no evaluation; imports by name only from the command line."""
    found = [
        f"{module.name}:{line}: {what}"
        for module in modules()
        for line, what in _dangers(module)
    ]
    assert found == []


def _dangers(module: Module):
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]} if not node.level else set()
        elif isinstance(node, ast.Call):
            yield from _dangerous_call(module, node)
            continue
        else:
            continue
        for name in sorted(names & UNPICKLE):
            yield node.lineno, f"imports {name}"


def _dangerous_call(module: Module, node: ast.Call):
    called = ast.unparse(node.func)
    if called in EXECUTE:
        yield node.lineno, f"calls {called}"
    by_name = called.split(".")[-1] in {"import_module", "resolve_name"}
    if by_name and not module.name.startswith("cli/"):
        yield node.lineno, f"imports by name: {ast.unparse(node)}"
