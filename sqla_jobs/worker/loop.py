"""The event loop that runs async handlers.

Usually in a thread of its own; embedded with ``async with Worker(...)`` it is the
caller's loop, because that is where the caller's engine and clients live.

Attempts are run by consumer tasks that take the next attempt of their queue when one
ends: a task per job costs 10 µs, and ``asyncio.timeout`` per job a quarter of the
throughput. A consumer that an attempt has tainted (a cancellation that it asked for
itself, a context variable that it left set) is replaced, so nothing reaches the next job.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from concurrent.futures import Future

    from sqla_jobs.worker.attempts import Attempt

logger: Final = logging.getLogger("sqla_jobs.worker")

R = TypeVar("R")

TURN: Final = 16
"""Attempts that one consumer runs before it lets the loop's other tasks go on."""


class AsyncRunner:
    """Runs attempts on an event loop; see the module.

    Everything with an underscore runs on the loop.
    """

    def __init__(
        self,
        run: Callable[[Attempt], Awaitable[Attempt | None]],
        size: int,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._run = run
        self._size = size
        self._own = loop is None
        self._loop = asyncio.new_event_loop() if loop is None else loop
        self._idle: list[asyncio.Future[Attempt | None]] = []
        # The loop keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        self._clean = contextvars.Context() if self._own else contextvars.copy_context()
        self._thread: threading.Thread | None = None
        self._closed = False
        if self._own:
            self._thread = threading.Thread(
                target=self._serve, name="sqla-jobs-loop", daemon=True
            )
            self._thread.start()

    def start(self, attempts: Sequence[Attempt]) -> None:
        """Run *attempts*; from any thread, with one wake-up of the loop."""
        self._call(self._admit, attempts)

    def cancel(self, attempt: Attempt) -> None:
        """Cancel the task of *attempt*, unless its completing commit is on its way."""
        self._call(partial(self._cancel, attempt, abandoned=False))

    def cancel_for_good(self, attempt: Attempt) -> None:
        """Cancel the task of *attempt*, which was abandoned, whatever it does."""
        self._call(partial(self._cancel, attempt, abandoned=True))

    def submit(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Run *work* on the loop; its future is for other threads."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, timeout: float) -> bool:
        """End idle consumers and our own loop; return whether all is over in time."""
        self._call(self._close)
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments, context=self._clean)
        except RuntimeError:
            # The loop is closed: it was the caller's, who left without stopping us, or
            # ours at the end of the shutdown. What it ran ends with the lease.
            logger.debug("the handlers' loop is closed")

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._closed:
                try:
                    self._loop.run_forever()
                except BaseException as error:
                    # SystemExit and KeyboardInterrupt out of a task that a handler
                    # started break out of the loop; they do not end the worker.
                    logger.warning("a task of a job raised %r", error)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _admit(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            self._hand(attempt)

    def _hand(self, attempt: Attempt) -> None:
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(attempt)
                return
        task = self._loop.create_task(
            self._consume(attempt), context=self._clean.copy()
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self, attempt: Attempt, *, abandoned: bool) -> None:
        task = attempt.task
        if task is not None and (abandoned or not attempt.completing):
            task.cancel()

    def _close(self) -> None:
        self._closed = True
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._idle.clear()
        if self._own:
            for task in self._tasks:
                task.cancel()
            # Later than the tasks' next step, in which they end.
            self._loop.call_later(0.05, self._loop.stop)

    async def _consume(self, first: Attempt) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - we are one
        before = contextvars.copy_context()
        attempt: Attempt | None = first
        turn = 0
        while attempt is not None:
            attempt.task = task
            following = await self._run(attempt)
            attempt.task = None
            if task.cancelling() or contextvars.copy_context() != before:
                if following is not None:
                    self._hand(following)
                return
            turn += 1
            if following is not None and turn >= TURN:
                turn = 0
                await asyncio.sleep(0)
            elif following is None:
                turn = 0
                following = await self._next()
            attempt = following

    async def _next(self) -> Attempt | None:
        if self._closed or len(self._idle) >= self._size:
            return None
        waiter: asyncio.Future[Attempt | None] = self._loop.create_future()
        self._idle.append(waiter)
        return await waiter
