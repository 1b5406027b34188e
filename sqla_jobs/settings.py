"""Process-wide settings, read once from the environment and pyproject.toml.

Only what has to be known before any table is defined lives here; everything else is an
argument where it is used.
"""

from __future__ import annotations

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Final

ENV_SCHEMA: Final = "SQLA_JOBS_SCHEMA"


@cache
def pyproject_section() -> dict[str, object]:
    """Return ``[tool.sqla-jobs]`` of the nearest pyproject.toml, or nothing."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            document = tomllib.loads(file.read_text(encoding="utf-8"))
            section = document.get("tool", {}).get("sqla-jobs", {})
            return dict(section) if isinstance(section, dict) else {}
    return {}


def schema_name() -> str | None:
    """Return the schema our tables live in, or None for the connection's default."""
    given = os.environ.get(ENV_SCHEMA) or pyproject_section().get("schema")
    return str(given) if given else None
