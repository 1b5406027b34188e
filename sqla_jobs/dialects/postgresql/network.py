"""How the library's own connections treat a network that says nothing.

A peer that vanishes without a word keeps a reader waiting for hours, and a connect for
minutes: a worker would outlive its lease in there. What the application has set itself,
in its URL or its connect arguments, stays as it is.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine
    from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
    from sqlalchemy.pool import ConnectionPoolEntry

# libpq's names; without effect on a socket of the file system.
DEFAULTS: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,
}
"""Seconds, and milliseconds for the last: 20 s until a silent peer counts as gone."""

_local: Final = threading.local()


def arrange(engine: Engine) -> None:
    """Let connects of *engine* inside :func:`impatient` have :data:`DEFAULTS`."""
    # A dialect's event, and the dialect may be the application's too: so the listener
    # is one and the same for all, and acts in our own calls alone.
    event.listen(engine, "do_connect", _add_defaults)


@contextmanager
def impatient() -> Iterator[None]:
    """Connect with :data:`DEFAULTS` in this thread, where nothing else is said."""
    before = getattr(_local, "impatient", False)
    _local.impatient = True
    try:
        yield
    finally:
        _local.impatient = before


def _add_defaults(
    dialect: Dialect,
    record: ConnectionPoolEntry,  # noqa: ARG001 - SQLAlchemy's signature
    arguments: list[Any],  # noqa: ARG001 - SQLAlchemy's signature
    options: dict[str, Any],
) -> DBAPIConnection | None:
    if dialect.driver == "psycopg" and getattr(_local, "impatient", False):
        for name, value in DEFAULTS.items():
            options.setdefault(name, value)
    return None
