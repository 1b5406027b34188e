"""``Worker``: what an application starts."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Self

from sqla_jobs.exc import WorkerConfigError, WorkerStuckError
from sqla_jobs.worker.config import Config
from sqla_jobs.worker.engine import Parts
from sqla_jobs.worker.health import Health
from sqla_jobs.worker.service import logger
from sqla_jobs.worker.shutdown import Shutdown
from sqla_jobs.worker.stats import Stats
from sqla_jobs.worker.supervisor import watch_supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType, TracebackType

    from sqlalchemy import URL

    from sqla_jobs.asyncio import AsyncJobSession
    from sqla_jobs.declare.duration import Duration
    from sqla_jobs.declare.registry import Jobs
    from sqla_jobs.session import JobSession

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """Claims, runs and settles the jobs that *jobs* declares; one per process.

    :param session: the application's session factory, for sync handlers. A plain
     sessionmaker, one of :class:`.JobSession`, a ``scoped_session``, or a callable.
    :param async_session: an ``async_sessionmaker``, for async handlers.
    :param queues: how many attempts of each queue run at a time in this process, sync
     and async ones together.
    :param grace: how long running attempts may go on after a stop was asked for.
    :param lease_ttl: how long after this process has died its jobs are rescued.
    :param poll_interval: how often to look for jobs while notifications do not arrive.
    :param prefetch: how many jobs of each queue to claim before they can start; by
     default as many as start within a quarter of a second.
    :param url: where the engine's own connections go, if not where *session* does.
    :param listen_url: where the one connection goes that hears notifications: past a
     pooler that gives a server connection to each transaction, which loses them.
    :param health_port: answer ``/live`` and ``/ready`` there, over HTTP; 0 takes any
     that is free (:attr:`health_port`).
    :param health_host: the address of that port; ``0.0.0.0`` for probes from outside.

    What cannot work raises :exc:`.WorkerConfigError` here; the database is first asked
    by :meth:`start`.
    """

    def __init__(
        self,
        jobs: Jobs,
        *,
        session: Callable[[], JobSession] | None = None,
        async_session: Callable[[], AsyncJobSession] | None = None,
        queues: Mapping[str, int] | None = None,
        grace: Duration = "30s",
        lease_ttl: Duration = "30s",
        poll_interval: Duration = "1s",
        prefetch: int | None = None,
        url: URL | str | None = None,
        listen_url: URL | str | None = None,
        health_port: int | None = None,
        health_host: str = "127.0.0.1",
    ) -> None:
        self._config = Config.of(
            jobs,
            session=session,
            async_session=async_session,
            queues={"default": 10} if queues is None else queues,
            grace=grace,
            lease_ttl=lease_ttl,
            poll_interval=poll_interval,
            prefetch=prefetch,
            url=url,
            listen_url=listen_url,
            health_port=health_port,
            health_host=health_host,
        )
        self._lock = threading.Lock()
        self._parts: Parts | None = None
        self._health: Health | None = None
        self._owner = os.getpid()
        self._last = Stats()
        self._hurries = 0
        self._running = False
        self._failure: WorkerStuckError | None = None
        # Reentrant, so a signal handler may put into it whatever the thread does.
        self._requests: SimpleQueue[str] = SimpleQueue()

    @property
    def health_port(self) -> int | None:
        """Where ``/live`` and ``/ready`` are answered; None while they are not."""
        health = self._health
        return None if health is None else health.port

    @property
    def stats(self) -> Stats:
        """What was done since the start, or until the stop; a snapshot."""
        parts = self._parts
        if parts is None:
            return self._last
        return parts.snapshot()

    def start(self) -> None:
        """Start in threads and return; does nothing when it runs.

        Raises :exc:`.SchemaVersionError` for missing or too old tables,
        :exc:`.DatabaseUnavailableError`, :exc:`.WorkerConfigError` for a factory in
        AUTOCOMMIT, and whatever the lifespan raises; then nothing runs.
        """
        self._start(None)

    def stop(self) -> None:
        """Stop as on SIGTERM: running attempts have ``grace`` to end; idempotent.

        Does nothing in a fork of the process that started it.

        Blocks until all is over, some seconds longer than ``grace`` at most, also with
        the database away.
        """
        if self._owner != os.getpid():
            return
        with self._lock:
            parts, self._parts = self._parts, None
            if parts is None:
                return
            try:
                Shutdown(parts, lambda: self._hurries).run()
            finally:
                self._close_health()
            self._last = parts.snapshot()

    def run(self) -> None:
        """Start, and work until SIGTERM or SIGINT (or :meth:`request_stop`); then stop.

        In the main thread the signals are handled here: the first one stops gracefully,
        each further one skips a phase of the shutdown. In other threads signals are the
        application's business. Raises :exc:`.WorkerStuckError`, after the stop, when
        too many handlers never come back: the process must be replaced then.
        """
        with self._signals():
            self._failure = None
            self.start()
            watch_supervisor(lambda: self.request_stop("the supervisor is gone"))
            self._running = True
            try:
                logger.info("stopping: %s", self._requests.get())
            finally:
                self._running = False
                self.stop()
        if self._failure is not None:
            raise self._failure

    def request_stop(self, reason: str = "asked by the program") -> None:
        """Let :meth:`run` stop, or the stop that is on its way skip a phase.

        Returns at once; safe in signal handlers.
        """
        self._hurries += 1
        self._requests.put(reason)

    def __enter__(self) -> Self:
        """Start; the block runs beside the worker."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    async def __aenter__(self) -> Self:
        """Start without blocking the loop; async handlers run on *this* loop.

        So the application's async engine and clients, which belong to this loop, serve
        its handlers too. A handler that blocks then blocks the application.
        """
        loop = asyncio.get_running_loop()
        await _in_thread(lambda: self._start(loop))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop without blocking the loop; a cancellation waits for the end."""
        stopping = asyncio.ensure_future(_in_thread(self.stop))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            self._hurries += 1
            await stopping
            raise

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._forget_parent()
        with self._lock:
            if self._parts is not None:
                return
            parts = Parts(
                self._config,
                outdated=self._outdated,
                too_many_stuck=self._replace_process,
            )
            try:
                if self._config.health is not None:
                    self._health = Health(parts, *self._config.health)
                parts.open(loop)
            except BaseException:
                self._close_health()
                parts.abort()
                raise
            for service in parts.services():
                service.start()
            self._parts = parts

    def _close_health(self) -> None:
        health, self._health = self._health, None
        if health is not None:
            health.close()

    def _forget_parent(self) -> None:
        """Begin afresh in the child of a fork: threads and sockets are its parent's."""
        if self._owner == os.getpid():
            return
        if self._parts is not None:
            raise WorkerConfigError(
                f"This worker was started in process {self._owner}, and this is the "
                f"fork {os.getpid()}: its threads did not come along",
                "start a worker of its own after the fork (gunicorn: post_worker_init)",
            )
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._requests = SimpleQueue()

    def _outdated(self, reason: str) -> None:
        logger.error("draining and stopping: %s", reason)
        parts = self._parts
        if parts is not None:
            parts.claimer.stop(0)
        self.request_stop(reason)

    def _replace_process(self, stuck: int) -> None:
        """End :meth:`run`, so that the process is replaced; elsewhere only say it."""
        if self._failure is not None:
            return
        self._failure = WorkerStuckError(stuck)
        logger.error("%s", self._failure)
        if self._running:
            self.request_stop("too many attempts are stuck")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of handlers
            self.request_stop(signal.Signals(number).name)

        before = {number: signal.signal(number, handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _in_thread(work: Callable[[], None]) -> None:
    """Run *work* in a thread of its own: the default executor may be full."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failure: BaseException | None = None
        try:
            work()
        except BaseException as error:
            failure = error
        loop.call_soon_threadsafe(tell, failure)

    threading.Thread(target=run, name="sqla-jobs-embed", daemon=True).start()
    await done
