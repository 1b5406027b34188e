"""What a producer knows, on disk before it goes on: proof against its own death."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COMMITTED = "committed"
"""Written after the commit returned: the job must exist."""
ROLLED_BACK = "rolled back"
"""Written before the rollback: the job must never exist."""
WRONG = "wrong"
"""The library answered what it must not."""


class Journal:
    """Appends lines, each on disk when the call returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, what: str, **facts: Any) -> None:
        """Append one line and wait for the disk."""
        self._file.write(json.dumps({"what": what, **facts}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal; a half one at the end was never relied on."""
    for line in path.read_text("utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
