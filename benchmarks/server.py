"""A durable PostgreSQL of its own for one measurement, with our tables."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sqlalchemy import URL, create_engine, text

import sqla_jobs
from tests.support.server import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def database(version: int = 18) -> Iterator[URL]:
    """Start the embedded server (fsync, synchronous_commit on) with our tables."""
    with embedded(version, durable=True) as server:
        engine = create_engine(server.url)
        sqla_jobs.metadata.create_all(engine)
        engine.dispose()
        yield server.url


def settings(url: URL) -> dict[str, str]:
    """Return the settings that a figure depends on."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {
            name: str(connection.scalar(text(f"show {name}")))
            for name in (
                "server_version",
                "fsync",
                "synchronous_commit",
                "full_page_writes",
                "shared_buffers",
            )
        }
    engine.dispose()
    return found
