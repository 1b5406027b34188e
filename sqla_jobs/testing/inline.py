"""A worker without threads: claim, run and settle, one job after the other.

Its parts are the worker's own (the statements, the executor, the judgement of errors,
the fenced sessions); what is left out is what needs time or another thread: the
heartbeat, time limits, rescue. Database functions take the session of the caller, who
commits: between two of them a handler has run.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, select

from sqla_jobs import clock
from sqla_jobs.dialects import bind_arguments
from sqla_jobs.exc import DeclarationError, PayloadError, RunRefusedError
from sqla_jobs.queue.claim import claim, inputs_of
from sqla_jobs.queue.outcome import (
    Cancelled,
    Dead,
    Interrupted,
    Released,
    Retry,
    Settlement,
    Snooze,
    Succeeded,
)
from sqla_jobs.queue.renew import expire_lease, register_worker, renew
from sqla_jobs.queue.settle import Verdict, settle, was_settled
from sqla_jobs.worker.attempts import Attempt, Attempts
from sqla_jobs.worker.borrowed import Backends
from sqla_jobs.worker.dead_letters import tell
from sqla_jobs.worker.ending import Ending, Mark
from sqla_jobs.worker.executor import Executor
from sqla_jobs.worker.lease import Lease, lease_clock
from sqla_jobs.worker.room import Room
from sqla_jobs.worker.sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from sqlalchemy.orm import Session

    from sqla_jobs.asyncio import AsyncJobSession
    from sqla_jobs.declare.context import JobFacts
    from sqla_jobs.declare.registry import Jobs
    from sqla_jobs.queue.claim import Claim
    from sqla_jobs.session import JobSession

logger: Final = logging.getLogger("sqla_jobs.testing")

HOST: Final = "sqla_jobs.testing"
TTL: Final = timedelta(days=1)
"""No handler of a test takes as long; a frozen clock may pass it between two jobs."""

_FAILURES: Final = (Retry, Dead)
_INTENDED: Final = (Snooze, Cancelled, Interrupted)


class InlineWorker:
    """Runs the due jobs of *jobs* in the caller's thread or task.

    :param runs_async: whether async handlers can be run; else their jobs are left.
    """

    def __init__(
        self,
        jobs: Jobs,
        queues: Collection[str] | None,
        *,
        sync: Callable[[], JobSession],
        async_: Callable[[], AsyncJobSession] | None = None,
    ) -> None:
        self._jobs = jobs
        self._queues = deque(_checked(queues, jobs))
        self._runs_async = async_ is not None
        self._worker = f"{HOST}:{os.getpid()}"
        self._lease = Lease(TTL.total_seconds())
        self._room = Room("inline", 1)
        self._attempts = Attempts()
        self._endings: list[Ending] = []
        self._raised: BaseException | None = None
        self.counts: Counter[str] = Counter()
        """How many attempts ended how."""
        self.left: dict[str, str] = {}
        """Names of due jobs that cannot be run here, and why."""
        sessions = Sessions(
            worker=self._worker,
            backends=Backends(lambda: None),
            sync=sync,
            async_=async_,
        )
        self.executor = Executor(
            self._attempts,
            sessions,
            self._endings.append,
            around=self._around,
            size=1,
        )

    # --- database functions ----------------------------------------------------------

    def start(self, session: Session) -> None:
        """Register under a new identity, in the session's transaction."""
        refuse_without_savepoint(session)
        self._lease = Lease(TTL.total_seconds())
        asked = lease_clock()
        register_worker(
            session,
            worker_id=self._lease.id,
            host=HOST,
            pid=os.getpid(),
            version="",
            queues=dict.fromkeys(self._queues, 1),
            ttl=TTL,
        )
        now = session.execute(select(clock.now())).scalar_one()
        self._lease.registered(asked, time.monotonic(), now)

    def take(self, session: Session) -> Attempt | None:
        """Claim the next job, queues in turn; None when nothing is due that can run."""
        news = renew(session, self._lease.id, ttl=TTL, running=())
        if not news.alive:
            self.start(session)  # The clock was moved past the lease.
        for _ in range(len(self._queues)):
            queue = self._queues[0]
            self._queues.rotate(-1)
            if queue in news.paused:
                continue
            attempt = self._take_from(session, queue)
            if attempt is not None:
                return attempt
        return None

    def settle(self, session: Session, attempt: Attempt) -> BaseException | None:
        """Write how *attempt* ended and count it; return the error it failed with."""
        ending = self._endings.pop()
        error, self._raised = self._raised, None
        self.counts["attempts"] += 1
        if self._write(session, attempt, ending):
            self.counts[_word(ending)] += 1
        else:
            self.counts["stale"] += 1
        if isinstance(ending.outcome, _INTENDED):
            return None
        if isinstance(ending.outcome, _FAILURES) and error is None:
            error = _undecodable(attempt)
        if error is not None:
            claimed = attempt.claim
            error.add_note(
                f"attempt {claimed.attempt} of job {claimed.name!r} ({claimed.id}), run "
                "by sqla_jobs.testing; raise_errors=False counts it instead"
            )
        return error

    def stop(self, session: Session) -> None:
        """End the lease, in the session's transaction."""
        expire_lease(session, self._lease.id)

    # --- claims ----------------------------------------------------------------------

    def _take_from(self, session: Session, queue: str) -> Attempt | None:
        while claims := claim(session, self._lease.id, {queue: 1}, unknown=self.left):
            attempt = self._admitted(session, claims[0])
            if attempt is not None:
                return attempt
        return None

    def _admitted(self, session: Session, claimed: Claim) -> Attempt | None:
        spec = self._jobs.get(claimed.name)
        reason = self._why_not(claimed.name)
        if spec is None or reason is not None:
            # As a worker does; its name is excluded from now on.
            self.left[claimed.name] = reason or ""
            logger.warning("jobs %r are left: %s", claimed.name, reason)
            back = Settlement(claimed.id, claimed.fence, claimed.attempt, Released())
            settle(session, self._lease.id, [back], worker=self._worker)
            return None
        if claimed.input is None:
            inputs = inputs_of(session, [claimed.id])
            claimed = claimed._replace(input=inputs[claimed.id])
        attempt = Attempt(claimed, spec, self._room, self._lease, time.monotonic())
        self._attempts.add([attempt])
        self._room.admit([attempt])
        return attempt

    def _why_not(self, name: str) -> str | None:
        spec = self._jobs.get(name)
        if spec is None:
            return "this registry declares no job of that name"
        if spec.function is None:
            return "it has no handler: import the module that binds it"
        if spec.is_async and not self._runs_async:
            return "its handler is async: use drain_async()"
        return None

    # --- endings ---------------------------------------------------------------------

    def _write(self, session: Session, attempt: Attempt, ending: Ending) -> bool:
        """Settle *ending* if its session's commit did not; False when it was refused."""
        outcome = ending.outcome
        if isinstance(outcome, Mark):
            return outcome is Mark.COMMITTED
        settlement = ending.settlement
        assert settlement is not None  # noqa: S101 - only a mark has none
        worker_id, id_ = self._lease.id, settlement.job_id
        if not settle(session, worker_id, [settlement], worker=self._worker):
            verdict = was_settled(session, id_, settlement.fence, worker_id)
            if verdict is Verdict.BUSY:
                raise RunRefusedError(
                    f"The row of job {attempt.spec.name!r} ({id_}) is locked by another "
                    "transaction, so its end cannot be written",
                    "end that transaction before the jobs are run",
                )
            return False
        if ending.on_dead and isinstance(outcome, Dead):
            tell(session, attempt.spec, id_, outcome.error)
        return True

    @contextmanager
    def _around(self, facts: JobFacts) -> Iterator[None]:
        """Enter the registry's ``around`` and keep what an attempt raises."""
        try:
            if self._jobs.around is None:
                yield from self._witnessed()
            else:
                with self._jobs.around(facts):
                    # Inside as well: it may swallow what the handler raises.
                    yield from self._witnessed()
        except BaseException as error:
            if self._raised is None:
                self._raised = error
            raise

    def _witnessed(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._raised = error
            raise


def refuse_without_savepoint(session: Session) -> None:
    """Refuse a session that joins a transaction which its rollback would end."""
    bind = session.get_bind(**bind_arguments())
    if not isinstance(bind, Connection) or not bind.in_transaction():
        return
    mode = session.join_transaction_mode
    if mode == "conditional_savepoint":
        mode = "create_savepoint" if bind.in_nested_transaction() else "rollback_only"
    if mode == "rollback_only":
        raise RunRefusedError(
            "The factory's sessions join the test's transaction without a savepoint: "
            "they would not commit, and the rollback of one failing job would undo the "
            "whole test",
            "give the sessionmaker join_transaction_mode='create_savepoint', or use "
            "sqla_jobs.testing.rolled_back()",
        )


def _checked(queues: Collection[str] | None, jobs: Jobs) -> list[str]:
    known = {spec.queue for spec in jobs.specs.values()}
    if queues is None:
        return sorted(known)
    unknown = sorted(set(queues) - known)
    if unknown:
        raise RunRefusedError(
            f"queues={unknown}: no declared job uses that queue",
            f"the queues of this registry are {sorted(known)}",
        )
    return sorted(queues)


def _undecodable(attempt: Attempt) -> BaseException | None:
    """Return why the input cannot be read: the one failure that no handler raises."""
    try:
        attempt.spec.input_codec.decode(attempt.claim.input or "")
    except (PayloadError, DeclarationError) as error:
        return error
    return None


def _word(ending: Ending) -> str:
    match ending.outcome:
        case Succeeded() | Mark.COMMITTED:
            return "succeeded"
        case Retry():
            return "retried"
        case Dead():
            return "dead"
        case Snooze():
            return "snoozed"
        case Cancelled():
            return "cancelled"
        case _:
            return "interrupted"
