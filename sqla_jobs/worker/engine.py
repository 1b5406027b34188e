"""The parts of a running worker, made and connected in one place.

::

    listener ──look──▶ claimer ──attempts──▶ executor ──endings──▶ settler
                          ▲                  (threads, loop)           │
                          └──────────────── room ──────────────────────┘
    heartbeat: the lease      watchdog: timeouts, the lease's end
    rescuer: dead workers     janitor: retention

Each has its own thread, and those that talk to the database their own connection.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import attrs
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from sqla_jobs.dialects import dialect_named, job_connection
from sqla_jobs.exc import DatabaseUnavailableError
from sqla_jobs.queue.connections import engine_of, own_engine, renew_pool
from sqla_jobs.queue.renew import Condition
from sqla_jobs.queue.schema import check_schema
from sqla_jobs.queue.wakeup import EVERY, announce
from sqla_jobs.worker.attempts import Attempts
from sqla_jobs.worker.borrowed import Backends
from sqla_jobs.worker.claimer import Claimer
from sqla_jobs.worker.door import PATIENCE, Door
from sqla_jobs.worker.errors import is_busy, is_connection_loss, is_read_only, one_line
from sqla_jobs.worker.executor import Executor
from sqla_jobs.worker.heartbeat import Heartbeat, beat_patience
from sqla_jobs.worker.lifespan import Resources
from sqla_jobs.worker.listener import Listener
from sqla_jobs.worker.lookout import listener_on
from sqla_jobs.worker.rescuer import Janitor, Rescuer
from sqla_jobs.worker.room import Room
from sqla_jobs.worker.service import Service, logger
from sqla_jobs.worker.sessions import Sessions
from sqla_jobs.worker.settler import Settler
from sqla_jobs.worker.stats import Stats
from sqla_jobs.worker.watchdog import STUBBORN, Watchdog

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

    from sqla_jobs.dialects import QueueDialect
    from sqla_jobs.worker.config import Config, Place
    from sqla_jobs.worker.loop import AsyncRunner

SWEEP_PATIENCE: Final = 60.0
"""Seconds for a statement that may touch many rows; the server ends it after 30."""


class Parts:
    """Everything one start of a worker consists of; made anew for each start."""

    def __init__(
        self,
        config: Config,
        *,
        outdated: Callable[[str], None],
        too_many_stuck: Callable[[int], None],
    ) -> None:
        self.config = config
        self.stats = Stats()
        self.attempts = Attempts()
        self.engines: list[Engine] = []
        self.doors: list[Door] = []
        self.runner: AsyncRunner | None = None
        self.rooms = {
            queue: Room(queue, limit, config.prefetch)
            for queue, limit in config.queues.items()
        }
        worker = f"{socket.gethostname()}:{os.getpid()}"
        self.backends = Backends(self._report)
        self.sessions = Sessions(
            worker=worker,
            backends=self.backends,
            sync=config.session,
            async_=config.async_session,
        )
        self.resources = Resources(config.jobs.lifespan)
        self.settler = Settler(
            self._door(),
            config.jobs,
            self.stats,
            worker=worker,
            busy=self.is_busy,
            settled=self._settled,
            freed=self._announce,
        )
        self.executor = Executor(
            self.attempts,
            self.sessions,
            self.settler.put,
            around=config.jobs.around,
            size=config.concurrency,
        )
        self.listener = listener_on(
            self._engine(config.listen_url), config.queues, self._look, self._report
        )
        self.heartbeat = self._make_heartbeat(outdated)
        self.claimer = self._make_claimer()
        self.heartbeat.claimer = self.claimer
        self.watchdog = Watchdog(
            self.attempts,
            self.rooms.values(),
            self.executor,
            self._engine(),
            doors=self.doors,
            lease=self.heartbeat.current,
            fence=self.heartbeat.fence,
            too_many_stuck=too_many_stuck,
        )
        self.rescuer = self._make_rescuer()
        self.janitor = Janitor(self._door(SWEEP_PATIENCE), config.jobs, self.stats)

    @property
    def dialect(self) -> QueueDialect:
        """What the database can do."""
        return dialect_named(self.engines[0].dialect)

    def _make_heartbeat(self, outdated: Callable[[str], None]) -> Heartbeat:
        return Heartbeat(
            self._door(beat_patience(self.config.lease_ttl)),
            self.attempts,
            self.executor,
            condition=self._condition,
            queues=self.config.queues,
            ttl=self.config.lease_ttl,
            one_writer=not self.dialect.skip_locked,
            outdated=outdated,
        )

    def _make_rescuer(self) -> Rescuer:
        config = self.config
        return Rescuer(
            self._door(SWEEP_PATIENCE),
            config.jobs,
            self.stats,
            ttl=config.lease_ttl,
            freed=self._rescued,
        )

    def _make_claimer(self) -> Claimer:
        return Claimer(
            self._door(),
            self.config.jobs,
            self.stats,
            rooms=self.rooms,
            attempts=self.attempts,
            executor=self.executor,
            settler=self.settler,
            lease=self.heartbeat.current,
            healthy=self.listener.healthy,
            poll_interval=self.config.poll_interval,
        )

    def is_busy(self) -> bool:
        """Whether an attempt runs that may end soon."""
        return any(room.running for room in self.rooms.values())

    def services(self) -> Iterator[Service]:
        """Yield every loop, in the order in which they start."""
        yield self.heartbeat
        yield self.watchdog
        yield self.settler
        yield self.listener
        yield self.claimer
        yield self.rescuer
        yield self.janitor

    def open(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Check database and factories, make the resources, take the lease."""
        self._check_database()
        if self.config.runs_async or self.resources.is_async:
            self.runner = self.executor.use_async(loop)
        with self._explained():
            if self.config.session is not None:
                self.sessions.check()
                self._warn_of_small_pool()
            if self.config.async_session is not None and self.runner is not None:
                self.runner.submit(self.sessions.check_async()).result()
            self.heartbeat.register()
        self.executor.resources = self.resources.enter(self.runner)

    def snapshot(self) -> Stats:
        """Return the counts as they are now."""
        busy = sum(room.busy_seconds for room in self.rooms.values())
        return attrs.evolve(
            self.stats,
            execute_seconds=busy,
            stuck=self.stuck,
            listening=self.listener.healthy(),
        )

    @property
    def stuck(self) -> int:
        """How many abandoned attempts have not come back for a while."""
        return len(self.attempts.stuck(longer_than=STUBBORN))

    def abort(self) -> None:
        """Undo what :meth:`open` did before it raised."""
        if self.heartbeat.lease is not None:
            with suppress(Exception):
                self.heartbeat.expire()
        self.executor.close(1.0)
        self.listener.close()
        self.dispose()

    def dispose(self) -> None:
        """Close every connection of ours that is not in use."""
        for engine in self.engines:
            engine.dispose()

    def _engine(self, url: Place | None = None) -> Engine:
        """Return an engine of our own with a pool of its own.

        The application's pool may hold a single connection, and ours is made like it:
        with one pool for each thread none can starve another.
        """
        config = self.config
        factory = config.session or config.async_session
        assert factory is not None  # noqa: S101 - checked by the config
        engine = own_engine(engine_of(factory), url=url or config.url)
        self.engines.append(engine)
        return engine

    def _door(self, patience: float = PATIENCE) -> Door:
        door = Door(self._engine(), patience=patience, left=self._leave_server)
        self.doors.append(door)
        return door

    def _leave_server(self) -> None:
        """Drop idle connections of the application's pools to a server that has gone.

        Or that takes no writes any more. Else each of them would cost a handler its
        attempt. What is checked out stays so; everything else connects anew, and finds
        whom the address names by then.
        """
        for factory in (self.config.session, self.config.async_session):
            if factory is not None:
                renew_pool(engine_of(factory))

    def _condition(self) -> Condition:
        listener = self.listener if isinstance(self.listener, Listener) else None
        return Condition(
            backends=self.backends.pids(),
            listening=None if listener is None else listener.healthy(),
            stuck=self.stuck,
            sign=None if listener is None else listener.new_sign(),
        )

    def _report(self) -> None:
        self.heartbeat.poke()

    def _look(self) -> None:
        self.claimer.look()

    def _rescued(self) -> None:
        """Look at once, and let everybody look: any worker rescues for all queues."""
        self._look()
        self._announce({EVERY})

    def _announce(self, queues: set[str]) -> None:
        """Tell other workers of jobs that are to be had and that no enqueue announced."""
        announce(self.engines[0], queues)

    def _settled(self, again: float | None) -> None:
        """Tell the claimer that there is room, and when a job of ours is due again."""
        # A rerun that was asked for made a settled job ready, and nobody announces it.
        self.claimer.look(1.0 if again is None else min(again, 1.0))
        self.claimer.poke()

    def _check_database(self) -> None:
        door = self._door()
        with self._explained():
            door.run(self._refuse_unshared)
            door.run(check_schema)
        door.close()

    def _refuse_unshared(self, session: Session) -> None:
        self.dialect.refuse_unshared(job_connection(session))

    def _warn_of_small_pool(self) -> None:
        """Say it when handlers may have to wait for each other's connections."""
        factory = self.config.session
        assert factory is not None  # noqa: S101 - asked by the caller
        pool = engine_of(factory).pool
        if not isinstance(pool, QueuePool):
            return
        overflow = pool._max_overflow
        most = pool.size() + overflow
        wanted = self.config.concurrency
        if overflow >= 0 and most < wanted:
            logger.warning(
                "the application's pool holds %d connections, but %d attempts may run "
                "at a time: those that use ctx.session will wait for each other, and "
                "fail after pool_timeout (%g s); raise pool_size, or lower queues=",
                most,
                wanted,
                pool.timeout(),
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in words of our own why the database cannot be used."""
        try:
            yield
        except DBAPIError as error:
            explained = self.dialect.explained(error)
            if explained is not None:
                raise explained from error
            what = "The worker cannot start"
            if is_read_only(error):
                reason = "the database is read-only"
                raise DatabaseUnavailableError(what, reason) from error
            if is_connection_loss(error) or is_busy(error):
                reason = one_line(error)
                raise DatabaseUnavailableError(what, reason) from error
            raise
