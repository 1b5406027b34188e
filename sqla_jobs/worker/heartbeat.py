"""The heartbeat: keeps the worker's one lease, and brings the news.

A thread and a connection of its own, so that neither a busy loop, nor a handler's long
statement, nor a settle that hangs can stop it. One round trip carries the running
attempts out, and lost ones, cancel requests, paused queues and version limits back.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from importlib import metadata
from typing import TYPE_CHECKING, ClassVar, Final

from sqlalchemy import select

from sqla_jobs import clock
from sqla_jobs.dialects import job_connection
from sqla_jobs.exc import LeaseLostError
from sqla_jobs.models import CODE_VERSION, MIN_SCHEMA_VERSION
from sqla_jobs.queue.outcome import Cancelled
from sqla_jobs.queue.renew import expire_lease, register_worker, renew
from sqla_jobs.worker.ending import Mark
from sqla_jobs.worker.lease import Lease, lease_clock
from sqla_jobs.worker.service import Service, jittered, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from sqlalchemy.orm import Session

    from sqla_jobs.queue.renew import Condition, Renewal
    from sqla_jobs.worker.attempts import Attempt, Attempts
    from sqla_jobs.worker.claimer import Claimer
    from sqla_jobs.worker.door import Door
    from sqla_jobs.worker.executor import Executor

BEATS: Final = 4
"""Renewals per ttl: 7.5 s at 30 s."""
QUICKEST: Final = 0.25
"""Seconds between two renewals, at least."""
CANCEL_CHANCE: Final = 1.0
"""Seconds in which an async handler can see ``ctx.cancelled`` before its task is."""


def beat_interval(ttl: float) -> float:
    """Return the seconds between two renewals of a lease of *ttl* seconds."""
    return max(ttl / BEATS, QUICKEST)


def beat_patience(ttl: float) -> float:
    """Return the seconds after which a beat without an answer is given up for another.

    So that three in a row may be lost before a lease of *ttl* seconds is.
    """
    return max(ttl / 6, 1.0)


def code_version() -> str:
    """Return the release of this library, as people see it among the workers."""
    try:
        return metadata.version("sqla-jobs")
    except metadata.PackageNotFoundError:
        return "from a checkout"  # Nothing is installed that knows its release.


class Heartbeat(Service):
    """Registers the worker, renews its lease, and starts over when it is lost."""

    name: ClassVar = "heartbeat"

    def __init__(
        self,
        door: Door,
        attempts: Attempts,
        executor: Executor,
        *,
        condition: Callable[[], Condition],
        queues: Mapping[str, int],
        ttl: float,
        one_writer: bool,
        outdated: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._door = door
        self._attempts = attempts
        self._executor = executor
        self._condition_now = condition
        self._queues = queues
        self._ttl = ttl
        self._one_writer = one_writer
        self._interval = beat_interval(ttl)
        self.longest_pause = self._interval / 2
        self._outdated = outdated
        self._told_outdated = False
        self._last = float("-inf")
        self.lease: Lease | None = None
        self.claimer: Claimer | None = None

    def current(self) -> Lease | None:
        """Return the lease under which to work; None while there is none."""
        return self.lease

    def run_once(self) -> int:
        """Renew the lease, or register anew when there is none."""
        # Pokes tell of news that must not wait for the beat; they may come in swarms.
        self._stopping.wait(self._last + QUICKEST - time.monotonic())
        self._last = time.monotonic()
        lease = self.lease
        if lease is not None and not lease.valid:
            self.fence(lease)
            lease = None
        if lease is None or lease.lost:
            self.register()
            return 1
        if self._one_writer:
            with lease.in_line():
                asked, renewal = self._door.transaction(self._renew_in_turn, lease)
        else:
            asked = lease_clock()
            renewal = self._door.run(self._renew, lease)
        if not renewal.alive:
            self.fence(lease)
            self.poke()
            return 1
        lease.renewed(asked)
        self._act(renewal)
        return 0

    def pause(self) -> float:
        """Wait for the next beat."""
        return jittered(self._interval, 0.1)

    def close(self) -> None:
        """Give the connection back."""
        self._door.close()

    def register(self) -> None:
        """Start under a new identity; one row is written.

        A lease that was lost here may hold in the database, when only the answer was
        late: it is ended, or its jobs would wait until it runs out.
        """
        lease = Lease(self._ttl)
        self._door.close()
        lease.registered(*self._door.transaction(self._register, lease))
        self.lease = lease
        logger.info("worker %s started, queues %s", lease.id, dict(self._queues))
        if self.claimer is not None:
            self.claimer.look()

    def fence(self, lease: Lease) -> None:
        """Stop trusting *lease*: abandon its attempts, and settle nothing under it."""
        if lease.lost:
            return
        lease.lost = True
        mine = [a for a in self._attempts.live() if a.lease is lease]
        logger.error(
            "worker %s has lost its lease: %d attempts are abandoned, it starts again "
            "under another id",
            lease.id,
            len(mine),
        )
        for attempt in mine:
            self._lose(attempt)
        self.poke()

    def expire(self) -> None:
        """End the lease now, so that what is left is rescued at once."""
        lease, self.lease = self.lease, None
        if lease is not None and not lease.lost:
            self._door.close()
            self._door.transaction(expire_lease, lease.id)

    def _renew(self, session: Session, lease: Lease) -> Renewal:
        return renew(
            session,
            lease.id,
            ttl=timedelta(seconds=lease.ttl),
            running=self._attempts.pairs(lease),
            condition=self._condition_now(),
        )

    def _renew_in_turn(self, session: Session, lease: Lease) -> tuple[float, Renewal]:
        """Renew, and tell when the wait for the right to write was over."""
        job_connection(session)
        return lease_clock(), self._renew(session, lease)

    def _register(
        self, session: Session, lease: Lease
    ) -> tuple[float, float, datetime]:
        """Write the row; return both clocks before, and the database's time after."""
        job_connection(session)  # Where there is one writer, this waits for its turn.
        asked, monotonic = lease_clock(), time.monotonic()
        if self.lease is not None:
            expire_lease(session, self.lease.id)
        register_worker(
            session,
            worker_id=lease.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=code_version(),
            queues=self._queues,
            ttl=timedelta(seconds=lease.ttl),
        )
        return asked, monotonic, session.execute(select(clock.now())).scalar_one()

    # --- news ------------------------------------------------------------------------

    def _act(self, renewal: Renewal) -> None:
        for attempt in self._attempts.named(renewal.lost):
            # A commit that is on its way will learn it by itself.
            if not attempt.completing and self._lose(attempt):
                logger.warning("%r was lost: somebody else ended or has it", attempt)
        self._cancel(self._attempts.named(renewal.cancelled), renewal.cancelled)
        claimer = self.claimer
        if claimer is not None and claimer.paused != renewal.paused:
            claimer.paused = renewal.paused
            claimer.look()
        self._check_versions(renewal)

    def _lose(self, attempt: Attempt) -> bool:
        error = LeaseLostError(attempt.claim.id, attempt.claim.fence)
        return self._executor.abandon(attempt, error, Mark.STALE)

    def _cancel(
        self, attempts: Iterable[Attempt], reasons: Mapping[str, str | None]
    ) -> None:
        for attempt in attempts:
            state = attempt.state
            if state.cancelled:
                continue
            state.cancel_reason = reasons[attempt.claim.id]
            state.cancelled = True
            if attempt.room.withdraw(attempt):
                self._executor.end_waiting(attempt, Cancelled(state.cancel_reason))
            else:
                attempt.cancel_task_at = time.monotonic() + CANCEL_CHANCE

    def _check_versions(self, renewal: Renewal) -> None:
        if self._told_outdated:
            return
        if renewal.min_code_version > CODE_VERSION:
            self._told_outdated = True
            self._outdated(
                f"the tables need code version {renewal.min_code_version}, and this is "
                f"{CODE_VERSION}: upgrade sqla-jobs here"
            )
        elif 0 < renewal.schema_version < MIN_SCHEMA_VERSION:
            self._told_outdated = True
            self._outdated(
                f"the tables are at version {renewal.schema_version}, and this code "
                f"needs {MIN_SCHEMA_VERSION}"
            )
