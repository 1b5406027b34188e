"""Tests of what is different where a database has one writer: all on SQLite files."""

from __future__ import annotations

import pytest

from tests.worker.conftest import queue, spawn, start

__all__ = ["queue", "server", "spawn", "start"]


@pytest.fixture
def server() -> str:
    """Every test here has a file of its own."""
    return "sqlite"
