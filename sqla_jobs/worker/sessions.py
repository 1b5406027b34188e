"""``ctx.session``: a session of the application's factory for one attempt.

Only success commits it, and that commit settles the job in the same transaction; every
other outcome rolls it back and closes it first, and is settled on the engine's own
connection. Each attempt has a session of its own, made when it is first asked for and
closed in any case: nothing an attempt leaves in it reaches the next one.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sqlalchemy.orm import scoped_session

from sqla_jobs.dialects import dialect_of
from sqla_jobs.exc import LeaseLostError, SessionMissingError, WorkerConfigError
from sqla_jobs.queue.fence import AttemptGuard, guard
from sqla_jobs.queue.outcome import Interrupted
from sqla_jobs.worker.borrowed import Borrowed
from sqla_jobs.worker.classify import outcome_of
from sqla_jobs.worker.ending import Doubtful, Mark
from sqla_jobs.worker.errors import is_connection_loss, is_serialization_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from sqla_jobs.asyncio import AsyncJobSession
    from sqla_jobs.session import JobSession
    from sqla_jobs.worker.attempts import Attempt
    from sqla_jobs.worker.borrowed import Backends
    from sqla_jobs.worker.ending import Ended

logger: Final = logging.getLogger("sqla_jobs.worker")


class Sessions:
    """Opens, completes and closes the sessions of attempts, of both kinds."""

    def __init__(
        self,
        *,
        worker: str,
        backends: Backends,
        sync: Callable[[], JobSession] | None,
        async_: Callable[[], AsyncJobSession] | None,
    ) -> None:
        self._worker = worker
        self._backends = backends
        self._sync = sync
        self._async = async_

    def check(self) -> None:
        """Refuse a sync factory whose sessions cannot hold a transaction; connects."""
        if self._sync is None:
            return
        session = self._sync()
        try:
            refuse_autocommit(session.connection(), "session")
        finally:
            self._close(session)
            self.leave()

    async def check_async(self) -> None:
        """The same for the async factory; on the handlers' loop."""
        if self._async is None:
            return
        session = self._async()
        try:
            await session.run_sync(
                lambda s: refuse_autocommit(s.connection(), "async_session")
            )
        finally:
            await session.close()

    # --- sync attempts ---------------------------------------------------------------

    def open(self, attempt: Attempt) -> JobSession:
        """Return a new session for *attempt*, fenced by it."""
        if self._sync is None:
            raise SessionMissingError(attempt.claim.name, "session")
        session = self._sync()
        self._bind(attempt, session)
        return session

    def complete(self, attempt: Attempt, session: Session, output: str | None) -> Ended:
        """Commit *session* and settle the job in the same transaction; close it.

        Returns a mark when the job is settled or lost, else how the attempt ends. What
        is not about the commit itself (a failing flush) is raised.
        """
        self._begin_completion(attempt, output)
        try:
            session.commit()
        except Exception as error:
            return self._completion_failed(attempt, error)
        finally:
            attempt.completing = False
            self._close(session)
        return Mark.COMMITTED

    def give_up(self, session: Session) -> None:
        """Roll *session* back and close it."""
        self._close(session)

    def leave(self) -> None:
        """Empty the registry of a scoped_session: it is the application's global one.

        The next attempt in this thread must not find what this one left there, also
        when it never asked for ``ctx.session``.
        """
        factory = self._sync
        if isinstance(factory, scoped_session):
            with suppress(Exception):  # Its scope may be gone, and the session with it.
                factory.remove()

    @staticmethod
    def _close(session: Session) -> None:
        try:
            session.close()
        except Exception as error:
            # The connection was lost, most often.
            logger.debug("closing a session failed: %s", error)

    # --- async attempts --------------------------------------------------------------

    def open_async(self, attempt: Attempt) -> AsyncJobSession:
        """Return a new async session for *attempt*, fenced by it."""
        if self._async is None:
            raise SessionMissingError(attempt.claim.name, "async_session")
        session = self._async()
        self._bind(attempt, session.sync_session)
        return session

    async def complete_async(
        self, attempt: Attempt, session: AsyncJobSession, output: str | None
    ) -> Ended:
        """Do what :meth:`complete` does, on the handlers' loop."""
        self._begin_completion(attempt, output)
        try:
            await session.commit()
        except Exception as error:
            return self._completion_failed(attempt, error)
        finally:
            attempt.completing = False
            await self.give_up_async(session)
        return Mark.COMMITTED

    async def give_up_async(self, session: AsyncJobSession) -> None:
        """Roll *session* back and close it."""
        try:
            await session.close()
        except Exception as error:
            logger.debug("closing a session failed: %s", error)

    # --- both ------------------------------------------------------------------------

    def _bind(self, attempt: Attempt, session: Session) -> None:
        claim = attempt.claim
        fence = AttemptGuard(
            claim.id,
            claim.fence,
            claim.attempt,
            worker_id=attempt.lease.id,
            worker=self._worker,
            trusted=lambda: attempt.lease.valid,
        )
        guard(session, fence)
        attempt.borrowed = Borrowed(self._backends)
        attempt.borrowed.watch(session)
        # This order, and the other way round in abandoning: one of the two sees it.
        attempt.guard = fence
        if attempt.state.abort is not None:
            fence.abandon(attempt.state.abort)
            raise attempt.state.abort

    @staticmethod
    def _begin_completion(attempt: Attempt, output: str | None) -> None:
        assert attempt.guard is not None  # noqa: S101 - a session was opened with it
        attempt.completing = True
        attempt.guard.complete(output)

    @staticmethod
    def _completion_failed(attempt: Attempt, error: Exception) -> Ended:
        """Return how *attempt* ends whose completing commit raised *error*."""
        if isinstance(error, LeaseLostError):
            return Mark.STALE
        if is_serialization_failure(error):
            # Another transaction went on in its place: run again at once, not counted.
            return Interrupted(f"the completing commit met {_short(error)}")
        if is_connection_loss(error) and attempt.guard and attempt.guard.completed:
            # Nobody knows whether the COMMIT arrived. If it did, the fence refuses this:
            return Doubtful(outcome_of(error, attempt))
        raise error


def refuse_autocommit(connection: Connection, option: str) -> None:
    """Raise :exc:`.WorkerConfigError` when *connection* commits every statement.

    Or :exc:`.EngineUnsuitableError`, when its transactions cannot carry jobs otherwise.
    """
    dialect = dialect_of(connection)
    dialect.refuse_unfit(connection)
    if not dialect.autocommits(connection):
        return
    raise WorkerConfigError(
        f"The sessions of {option}= are in AUTOCOMMIT, so nothing that a job writes "
        "could be rolled back or committed with its completion",
        f"give {option}= a factory whose engine has another isolation_level",
    )


def _short(error: Exception) -> str:
    return type(getattr(error, "orig", error)).__name__
