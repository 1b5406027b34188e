"""Deadlocks, as the server counts them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import Engine, create_engine, text

from tests.support.waiting import wait_until

COUNT = text("select deadlocks from pg_stat_database where datname = :name")
OTHERS = text(
    "select count(*) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
    " and backend_type = 'client backend'"
    # The notifier's connection is the process's, not the test's.
    " and query not ilike '%notify%'"
)


@contextlib.contextmanager
def no_deadlock(*engines: Engine) -> Iterator[None]:
    """Assert that the server broke no deadlock in this database meanwhile.

    A backend reports its counts when it ends, so *engines* are disposed first.
    """
    yield  # A test that failed has left threads and connections behind.
    for engine in engines:
        engine.dispose()
    look = create_engine(engines[0].url, isolation_level="AUTOCOMMIT")
    try:
        with look.connect() as connection:
            wait_until(lambda: connection.scalar(OTHERS) == 0, what="backends gone")
            name = engines[0].url.database
            assert connection.scalar(COUNT, {"name": name}) == 0
    finally:
        look.dispose()
