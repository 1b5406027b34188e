"""The executor: from a claim to how its attempt ended. No SQL in here.

Both kinds of handlers take the same way: read the input, enter ``around``, call the
handler, write the output, complete the session if one was opened, classify what was
raised. The two versions differ in ``await`` alone.

``around`` stays entered until the session is completed: an application context that
closes the application's session when it ends must not take the completion with it.
"""

from __future__ import annotations

import contextvars
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from sqla_jobs.declare.context import JobContext
from sqla_jobs.exc import DeclarationError, JobTimeoutError, PayloadError
from sqla_jobs.queue.outcome import Succeeded
from sqla_jobs.worker.classify import outcome_of, timed_out, undecodable
from sqla_jobs.worker.ending import Ending, Mark
from sqla_jobs.worker.loop import AsyncRunner
from sqla_jobs.worker.pool import SyncPool
from sqla_jobs.worker.service import logger

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from sqla_jobs.asyncio.context import AsyncJobContext
    from sqla_jobs.declare.context import JobFacts
    from sqla_jobs.declare.registry import Around
    from sqla_jobs.worker.attempts import Attempt, Attempts
    from sqla_jobs.worker.ending import Ended
    from sqla_jobs.worker.sessions import Sessions

_DONE: Final = Succeeded()
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()


class Executor:
    """Runs attempts on threads and on the loop, and keeps every queue at its limit."""

    def __init__(
        self,
        attempts: Attempts,
        sessions: Sessions,
        put: Callable[[Ending], None],
        *,
        around: Around | None,
        size: int,
    ) -> None:
        self._attempts = attempts
        self._sessions = sessions
        self._put = put
        self._around = around
        self._size = size
        self._pool = SyncPool(self.run, size)
        self._runner: AsyncRunner | None = None
        self._async_context: type[AsyncJobContext] | None = None
        self.resources: Mapping[type, object] = {}

    def use_async(self, loop: asyncio.AbstractEventLoop | None = None) -> AsyncRunner:
        """Be able to run async handlers, on *loop* or on one of our own."""
        from sqla_jobs.asyncio import AsyncJobContext  # noqa: PLC0415 - needs an extra

        self._async_context = AsyncJobContext
        self._runner = AsyncRunner(self.run_async, self._size, loop)
        return self._runner

    def dispatch(self, attempts: Iterable[Attempt]) -> None:
        """Start *attempts*, each on the kind of thread its handler needs."""
        on_loop = []
        for attempt in attempts:
            if attempt.spec.is_async:
                on_loop.append(attempt)
            else:
                self._pool.start(attempt)
        if on_loop:
            assert self._runner is not None  # noqa: S101 - there are async handlers
            self._runner.start(on_loop)

    def abandon(self, attempt: Attempt, error: BaseException, ended: Ended) -> bool:
        """End *attempt* from outside as *ended*, whatever its handler does.

        Its later commits raise *error* here already; in the database the fence refuses
        them. Its place is given to the next attempt. Returns False when it has ended.
        """
        if not self._attempts.end(attempt):
            return False
        attempt.state.abort = error
        if attempt.guard is not None:
            attempt.guard.abandon(error)
        self._put(Ending.of(attempt, ended))
        if attempt.room.withdraw(attempt):
            return True
        self._attempts.abandoned(attempt)
        if self._runner is not None and attempt.spec.is_async:
            self._runner.cancel_for_good(attempt)
        following = attempt.room.leave(None)
        if following is not None:
            self.dispatch([following])
        return True

    def end_waiting(self, attempt: Attempt, ended: Ended) -> bool:
        """End *attempt*, which was taken out of its room before it started."""
        if not self._attempts.end(attempt):
            return False
        self._put(Ending.of(attempt, ended))
        return True

    def time_out(self, attempt: Attempt) -> bool:
        """Abandon *attempt*, which ran past its timeout."""
        limit = attempt.spec.timeout
        assert limit is not None  # noqa: S101 - else it has no deadline
        error = JobTimeoutError(attempt.claim.name, limit)
        return self.abandon(attempt, error, timed_out(error, attempt))

    def cancel_task(self, attempt: Attempt) -> None:
        """Raise CancelledError in the async handler of *attempt*."""
        if self._runner is not None and attempt.spec.is_async:
            self._runner.cancel(attempt)

    def close(self, timeout: float) -> bool:
        """Let threads and loop end; return whether the loop did in time."""
        self._pool.close()
        return self._runner is None or self._runner.close(timeout)

    # --- one attempt -----------------------------------------------------------------

    def _begin(self, attempt: Attempt) -> bool:
        """Note the start; False when the attempt was ended while it was handed over."""
        now = time.monotonic()
        limit = attempt.spec.timeout
        if limit is not None:
            attempt.deadline = now + limit.total_seconds()
            attempt.state.deadline = attempt.lease.instant(attempt.deadline)
        attempt.started = now
        if attempt in self._attempts:
            return True
        self._attempts.returned(attempt)
        return False

    def _finish(self, attempt: Attempt, ended: Ended) -> Attempt | None:
        """Hand the end to the settler; return the attempt to go on with here."""
        if not self._attempts.end(attempt):
            # Abandoned: its end is settled and its place is taken.
            self._attempts.returned(attempt)
            return None
        self._put(Ending.of(attempt, ended))
        assert attempt.started is not None  # noqa: S101 - it has begun
        following = attempt.room.leave(time.monotonic() - attempt.started)
        if following is None or following.spec.is_async == attempt.spec.is_async:
            return following
        self.dispatch([following])
        return None

    def _entered(self, facts: JobFacts) -> AbstractContextManager[object]:
        return _NOTHING if self._around is None else self._around(facts)

    # --- sync handlers ---------------------------------------------------------------

    def run(self, attempt: Attempt) -> Attempt | None:
        """Run *attempt*, which its room has let start, here; return the one to go on with.

        Its ending is put before this returns.
        """
        if not self._begin(attempt):
            return None
        # A context of its own: what the handler sets there is not the next one's.
        return self._finish(attempt, contextvars.Context().run(self._try, attempt))

    def _try(self, attempt: Attempt) -> Ended:
        spec = attempt.spec
        try:
            value = spec.input_codec.decode(attempt.claim.input or "")
        except (PayloadError, DeclarationError) as error:
            return undecodable(error)
        except BaseException as error:
            return outcome_of(error, attempt)
        context: JobContext[Any] = JobContext(
            attempt.claim,
            attempt.state,
            self.resources,
            partial(self._sessions.open, attempt),
        )
        ended: Ended | None = None
        failure: BaseException | None = None
        try:
            with self._entered(context):
                try:
                    ended = self._call(attempt, context, value)
                except BaseException as error:
                    failure = error
                    raise
        except BaseException as error:
            return _after(failure or error, attempt, ended)
        return _without_error(failure, attempt, ended)

    def _call(self, attempt: Attempt, context: JobContext[Any], value: Any) -> Ended:  # noqa: ANN401 - a job's input
        spec = attempt.spec
        assert spec.function is not None  # noqa: S101 - names without are not claimed
        try:
            result = spec.function(context, value)
            output = None if result is None else spec.output_codec.encode(result)
            if context.session_opened is not None:
                return self._sessions.complete(attempt, context.session_opened, output)
        except BaseException:
            if context.session_opened is not None:
                self._sessions.give_up(context.session_opened)
            raise
        finally:
            self._sessions.leave()
        return _DONE if output is None else Succeeded(output)

    # --- async handlers --------------------------------------------------------------

    async def run_async(self, attempt: Attempt) -> Attempt | None:
        """Do what :meth:`run` does for an async handler, in the current task."""
        if not self._begin(attempt):
            return None
        return self._finish(attempt, await self._try_async(attempt))

    async def _try_async(self, attempt: Attempt) -> Ended:
        spec = attempt.spec
        try:
            value = spec.input_codec.decode(attempt.claim.input or "")
        except (PayloadError, DeclarationError) as error:
            return undecodable(error)
        except BaseException as error:
            return outcome_of(error, attempt)
        assert self._async_context is not None  # noqa: S101 - see use_async
        context = self._async_context(
            attempt.claim,
            attempt.state,
            self.resources,
            partial(self._sessions.open_async, attempt),
        )
        ended: Ended | None = None
        failure: BaseException | None = None
        try:
            with self._entered(context):
                try:
                    ended = await self._call_async(attempt, context, value)
                except BaseException as error:
                    failure = error
                    raise
        except BaseException as error:
            return _after(failure or error, attempt, ended)
        return _without_error(failure, attempt, ended)

    async def _call_async(
        self,
        attempt: Attempt,
        context: AsyncJobContext[Any],
        value: Any,  # noqa: ANN401 - a job's input
    ) -> Ended:
        spec = attempt.spec
        function = cast("Callable[..., Awaitable[object]]", spec.function)
        try:
            result = await function(context, value)
            output = None if result is None else spec.output_codec.encode(result)
        except BaseException:
            if context.session_opened is not None:
                await self._sessions.give_up_async(context.session_opened)
            raise
        if context.session_opened is not None:
            return await self._sessions.complete_async(
                attempt, context.session_opened, output
            )
        return _DONE if output is None else Succeeded(output)


def _after(error: BaseException, attempt: Attempt, ended: Ended | None) -> Ended:
    """Return how *attempt* ends when *error* came out of the handler or ``around``.

    *ended* is there when the handler was through and ``around`` raised: what is
    committed or lost stays so, and the error can only be logged.
    """
    if isinstance(ended, Mark):
        logger.error("around= raised after %r had ended", attempt, exc_info=error)
        return ended
    return outcome_of(error, attempt)


def _without_error(
    failure: BaseException | None, attempt: Attempt, ended: Ended | None
) -> Ended:
    """Return how *attempt* ends; ``around`` may have swallowed the handler's error."""
    if failure is not None:
        return outcome_of(failure, attempt)
    assert ended is not None  # noqa: S101 - no error, so the handler was through
    return ended
