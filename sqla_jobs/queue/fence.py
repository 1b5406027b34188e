"""The fence of an attempt's own session.

Every COMMIT of a guarded session first locks its attempt's job row, matching
``(id, fence, worker_id)``: an attempt that has lost its job gets
:exc:`.LeaseLostError`, and the guard of :mod:`sqla_jobs.queue.ledger` rolls its rows
back. The completing commit also settles the job, in the same transaction: effects and
completion are one.

The row is locked no earlier than that: a handler that writes business rows first and a
request that cancels the job last take their locks in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import event, select

from sqla_jobs.dialects import SettleRow, bind_arguments, dialect_of, job_connection
from sqla_jobs.exc import LeaseLostError
from sqla_jobs.models import Job
from sqla_jobs.queue import ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, SessionTransaction


class AttemptGuard:
    """Who an attempt is, and what its next commit shall do.

    One guard serves one session of one attempt. ``abandon`` may be called from another
    thread; everything else belongs to the attempt's own.
    """

    __slots__ = (
        "_abandoned",
        "_output",
        "_trusted",
        "attempt",
        "completed",
        "completing",
        "fence",
        "job_id",
        "worker",
        "worker_id",
    )

    def __init__(
        self,
        job_id: str,
        fence: int,
        attempt: int,
        *,
        worker_id: str,
        worker: str,
        trusted: Callable[[], bool] | None = None,
    ) -> None:
        """Make the guard of attempt number *attempt* of *job_id*.

        :param trusted: whether the worker still trusts its lease. Asked before the
         database: the transaction of a worker that came back too late was perhaps
         ended by whoever rescued its job, and would only tell of a lost connection.
        """
        self.job_id, self.fence, self.attempt = job_id, fence, attempt
        self.worker_id, self.worker = worker_id, worker
        self.completing = False
        self.completed = False
        """The completing statement matched; its COMMIT may still be ambiguous."""
        self._output: str | None = None
        self._abandoned: BaseException | None = None
        self._trusted = trusted

    def complete(self, output: str | None) -> None:
        """Let the next commit settle the job as succeeded with *output* (JSON)."""
        self._output, self.completing = output, True

    def abandon(self, error: BaseException) -> None:
        """Let every later commit raise *error* without asking the database."""
        self._abandoned = error

    def hold(self, connection: Connection) -> None:
        """Lock the job row until this transaction ends.

        :raises LeaseLostError: the attempt does not own the job any more.
        """
        self._check()
        if not self._hold(connection):
            raise LeaseLostError(self.job_id, self.fence)
        self._check()

    def settle(self, connection: Connection) -> set[str]:
        """Settle the job as succeeded in this transaction.

        :raises LeaseLostError: the attempt does not own the job any more.
        """
        self._check()
        accepted = dialect_of(connection).settle(
            connection,
            worker_id=self.worker_id,
            worker=self.worker,
            rows=[
                SettleRow(
                    self.job_id,
                    self.fence,
                    self.attempt,
                    "succeeded",
                    output=self._output,
                )
            ],
            wait=not _joined(connection),
        )
        if not accepted:
            raise LeaseLostError(self.job_id, self.fence)
        self._check()
        self.completed = True
        return set()

    def _hold(self, connection: Connection) -> bool:
        if _joined(connection):
            owned = (
                select(Job.id)
                .where(
                    Job.id == UUID(self.job_id),
                    Job.fence == self.fence,
                    Job.worker_id == UUID(self.worker_id),
                )
                .with_for_update(key_share=True)
            )
            return connection.execute(owned).first() is not None
        return dialect_of(connection).hold(
            connection, job_id=self.job_id, fence=self.fence, worker_id=self.worker_id
        )

    def _check(self) -> None:
        if self._abandoned is not None:
            raise self._abandoned
        if self._trusted is not None and not self._trusted():
            raise LeaseLostError(self.job_id, self.fence)


def _joined(connection: Connection) -> bool:
    """Whether what ends now is a savepoint in a transaction that is somebody else's.

    The statements that bound how long a transaction may idle or wait set it for the
    whole of it, and that is not the attempt's to set.
    """
    return connection.in_nested_transaction()


def guard(session: Session, attempt: AttemptGuard) -> None:
    """Fence every commit of *session* by *attempt*; the session must be fresh.

    A session that joined a transaction by a savepoint (a test's, that is rolled back)
    commits by its RELEASE: that is then what the fence judges.
    """

    def join(
        session: Session, transaction: SessionTransaction, connection: Connection
    ) -> None:
        if transaction.parent is not None:
            return  # A savepoint of the handler's: its RELEASE is no commit.
        bind = session.get_bind(**bind_arguments())
        if connection is bind or connection.engine is bind:
            ledger.ledger_of(connection).fence_by(attempt, connection)

    def open_for_completion(session: Session) -> None:
        if attempt.completing and not session.in_nested_transaction():
            job_connection(session)

    event.listen(session, "after_begin", join)
    event.listen(session, "before_commit", open_for_completion)
