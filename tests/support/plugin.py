"""Our pytest plugin, for suites that run in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from tests.support.tree import ROOT


def run_suite(
    *arguments: str, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run pytest on somebody's suite in *cwd*, warnings as errors; return its output.

    Plugins that happen to be installed stay out: they have opinions of their own.
    """
    command = [sys.executable, "-W", "error", "-m", "pytest"]
    for name in ("asyncio", "randomly", "cacheprovider"):
        command += ["-p", f"no:{name}"]
    if not entry_points(group="pytest11", name="sqla_jobs"):
        # A checkout that was not installed: pytest knows no entry point of it.
        command += ["-p", "sqla_jobs_pytest"]
    return subprocess.run(
        [*command, *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=False,
    )
