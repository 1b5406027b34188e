"""A thread's own connection to the queue."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy.orm import Session

from sqla_jobs.dialects import dialect_named, dialect_of, job_connection
from sqla_jobs.queue.connections import renew_pool
from sqla_jobs.worker.borrowed import cut
from sqla_jobs.worker.errors import is_connection_loss, is_read_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE: Final = 15.0
"""Seconds after which a statement of one round trip is given up: all take milliseconds,
and an answer that the network lost never comes."""


class Door:
    """Runs database functions on one held connection; of one thread, not shared.

    :meth:`run` is for what is one statement: the connection is in AUTOCOMMIT, which
    saves BEGIN and COMMIT (20 % of the throughput), and it is held, which saves a
    checkout per call. :meth:`transaction` is for more. After an error the connection is
    given up, and the next call opens another; when that was because the server has gone,
    or takes no writes any more, *left* is called as well: whoever else has connections
    to it should not find that out one by one.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        patience: float = PATIENCE,
        left: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._single = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._patience = patience
        self._left = left
        self._session: Session | None = None
        self._lock = threading.Lock()
        # The driver's connection while a call uses it, and since when.
        self._driver: Any = None
        self._since = 0.0

    def run(
        self,
        function: Callable[Concatenate[Session, P], R],
        *args: P.args,
        **kw: P.kwargs,
    ) -> R:
        """Call *function* with the held session; each statement commits by itself."""
        session = self._session
        if session is None:
            session = self._session = Session(self._single)
        try:
            with self._watched(session):
                return function(session, *args, **kw)
        except BaseException as error:
            self.close()
            self._leave(error)
            raise

    def transaction(
        self,
        function: Callable[Concatenate[Session, P], R],
        *args: P.args,
        **kw: P.kwargs,
    ) -> R:
        """Call *function* in a transaction of its own, bounded, and commit it."""
        try:
            with Session(self._engine) as session, self._watched(session) as connection:
                dialect_of(connection).bound(connection)
                result = function(session, *args, **kw)
                session.commit()
                return result
        except BaseException as error:
            self._leave(error)
            raise

    def close(self) -> None:
        """Give the connection back; the next call opens another."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):  # It may have been lost: that was reported.
                session.close()

    @property
    def is_silent(self) -> bool:
        """Whether an answer is overdue."""
        waited = time.monotonic() - self._since
        return self._driver is not None and waited > self._patience

    def end_silence(self) -> None:
        """Cut the connection whose answer is overdue; called by another thread.

        The call in this door's own thread then fails as with any lost connection.
        Blocks for a few seconds at most.
        """
        with self._lock:
            if not self.is_silent:
                return
            driver, self._driver = self._driver, None
        cut(driver)

    @contextmanager
    def _watched(self, session: Session) -> Iterator[Connection]:
        """Connect *session*, and let :meth:`end_silence` see what is waited for."""
        with dialect_named(self._engine.dialect).impatient():
            connection = job_connection(session)
        with self._lock:
            self._driver = connection.connection.driver_connection
            self._since = time.monotonic()
        try:
            yield connection
        finally:
            with self._lock:
                self._driver = None

    def _leave(self, error: BaseException) -> None:
        if not (is_read_only(error) or is_connection_loss(error)):
            return
        renew_pool(self._engine)  # It may hold more connections to the same server.
        if self._left is not None:
            self._left()
