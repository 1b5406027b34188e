"""A thread's own connection to the queue."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from sqlalchemy.orm import Session

from sqla_jobs.dialects import dialect_of, job_connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

P = ParamSpec("P")
R = TypeVar("R")


class Door:
    """Runs database functions on one held connection; of one thread, not shared.

    :meth:`run` is for what is one statement: the connection is in AUTOCOMMIT, which
    saves BEGIN and COMMIT (20 % of the throughput), and it is held, which saves a
    checkout per call. :meth:`transaction` is for more. After an error the connection is
    given up, and the next call opens another.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._single = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._session: Session | None = None

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
            return function(session, *args, **kw)
        except BaseException:
            self.close()
            raise

    def transaction(
        self,
        function: Callable[Concatenate[Session, P], R],
        *args: P.args,
        **kw: P.kwargs,
    ) -> R:
        """Call *function* in a transaction of its own, bounded, and commit it."""
        with Session(self._engine) as session, session.begin():
            connection = job_connection(session)
            dialect_of(connection).bound(connection)
            return function(session, *args, **kw)

    def close(self) -> None:
        """Give the connection back; the next call opens another."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):  # It may have been lost: that was reported.
                session.close()
