"""``drain``: run what is due, in this thread and on the test's own connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
)
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs

from sqla_jobs.exc import RunRefusedError
from sqla_jobs.testing.inline import InlineWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.orm import Session

    from sqla_jobs.asyncio import AsyncJobSession
    from sqla_jobs.declare.registry import Jobs
    from sqla_jobs.session import JobSession
    from sqla_jobs.worker.attempts import Attempt

R = TypeVar("R")


@attrs.frozen(kw_only=True)
class Drained:
    """What a drain did: how many attempts ended in which way."""

    succeeded: int = 0
    dead: int = 0
    retried: int = 0
    """Failed, and will run again; due only when their backoff is over."""
    snoozed: int = 0
    cancelled: int = 0
    interrupted: int = 0
    """Ended by a deadlock or serialization failure in their commit; ran again."""
    stale: int = 0
    """Refused, because the attempt had lost its job meanwhile."""
    attempts: int = 0
    """All of them."""
    left: Mapping[str, str] = attrs.field(factory=dict)
    """Names of due jobs that could not be run here, with the reason."""

    @classmethod
    def by(cls, worker: InlineWorker) -> Drained:
        """Return what *worker* did."""
        return cls(**worker.counts, left=dict(worker.left))


def drain(
    session_factory: Callable[[], JobSession],
    jobs: Jobs,
    *,
    queues: set[str] | None = None,
    limit: int = 1000,
    raise_errors: bool = True,
    resources: Mapping[type[Any], object] | None = None,
) -> Drained:
    """Run the jobs that are due, and those that they enqueue, until none is left.

    Claim, handler and settle run in this thread with sessions of *session_factory*, so
    on the test's own connection, when the factory is bound to one: nothing has to be
    committed for real. Each job is claimed, run and settled as a worker does it, with
    its context's session, ``around`` and ``lifespan``; what a worker does by time and
    in other threads is left out (``timeout=``, cancelling a running job, rescue).
    Retries run when they are due: move a frozen clock on, and drain again.

    The caller's own sessions should have committed, and look at rows anew afterwards.

    :param queues: only these; all queues of *jobs* by default.
    :param limit: the most attempts to make; then it returns, whatever is still due.
    :param raise_errors: raise what a failing attempt raised, after it was settled: a
     job that dies must not leave the test green. ``False`` counts failures.
    :param resources: what ``ctx.resource`` gives, instead of the registry's lifespan.
    :raises RunRefusedError: the factory or *queues* cannot work.
    """
    make = _apart(session_factory)
    worker = InlineWorker(jobs, queues, sync=session_factory)

    def run(step: Callable[[Session], R]) -> R:
        with make() as session, session.begin():
            return step(session)

    with ExitStack() as stack:
        run(worker.start)
        stack.callback(run, worker.stop)
        worker.executor.resources = _entered(jobs, resources, stack)
        while worker.counts["attempts"] < limit:
            attempt = run(worker.take)
            if attempt is None:
                break
            with _set_aside(session_factory):
                worker.executor.run(attempt)
            error = run(_settling(worker, attempt))
            if error is not None and _is_raised(error, raise_errors=raise_errors):
                raise error
    return Drained.by(worker)


async def drain_async(
    session_factory: Callable[[], AsyncJobSession],
    jobs: Jobs,
    *,
    queues: set[str] | None = None,
    limit: int = 1000,
    raise_errors: bool = True,
    resources: Mapping[type[Any], object] | None = None,
) -> Drained:
    """Do what :func:`drain` does on the running loop, for async and sync handlers.

    Sync handlers get the sync face of an async session, so that both see the test's
    transaction; they block the loop while they run.
    """
    make = _apart(session_factory)
    worker = InlineWorker(
        jobs,
        queues,
        sync=lambda: cast("JobSession", session_factory().sync_session),
        async_=session_factory,
    )
    worker.executor.use_async(asyncio.get_running_loop())

    async def run(step: Callable[[Session], R]) -> R:
        async with make() as session, session.begin():
            return await session.run_sync(step)

    async with AsyncExitStack() as stack:
        await run(worker.start)
        stack.push_async_callback(run, worker.stop)
        worker.executor.resources = await _entered_async(jobs, resources, stack)
        while worker.counts["attempts"] < limit:
            attempt = await run(worker.take)
            if attempt is None:
                break
            with _set_aside(session_factory):
                await _run_attempt(worker, attempt, make)
            error = await run(_settling(worker, attempt))
            if error is not None and _is_raised(error, raise_errors=raise_errors):
                raise error
    return Drained.by(worker)


async def _run_attempt(
    worker: InlineWorker, attempt: Attempt, make: Callable[[], AsyncJobSession]
) -> None:
    if not attempt.spec.is_async:
        # Where a sync session can reach the connection of an async engine.
        async with make() as carrier:
            await carrier.run_sync(lambda _: worker.executor.run(attempt))
        return
    caller = asyncio.current_task()
    assert caller is not None  # noqa: S101 - there is a running loop
    asked = caller.cancelling()
    # A task of its own: what the handler does to its task or its context stays there.
    await asyncio.create_task(worker.executor.run_async(attempt))
    if caller.cancelling() > asked:
        # It was the caller that was cancelled: the handler only heard of it first.
        raise asyncio.CancelledError


def _settling(
    worker: InlineWorker, attempt: Attempt
) -> Callable[[Session], BaseException | None]:
    return lambda session: worker.settle(session, attempt)


def _is_raised(error: BaseException, *, raise_errors: bool) -> bool:
    # KeyboardInterrupt, pytest.fail() and pytest.skip() are not the job's, but the
    # test's: they are raised in any case.
    of_the_job = Exception | SystemExit | asyncio.CancelledError
    return raise_errors or not isinstance(error, of_the_job)


# --- session factories ----------------------------------------------------------------


def _apart(factory: Callable[[], R]) -> Callable[[], R]:
    """Return *factory*, or what makes the sessions of a scoped one.

    The session in its registry is the test's or the application's, with what it has
    not committed yet.
    """
    return cast("Callable[[], R]", getattr(factory, "session_factory", factory))


@contextmanager
def _set_aside(factory: Callable[[], object]) -> Iterator[None]:
    """Let an attempt find the registry of a scoped factory empty, as a thread would."""
    registry: Any = getattr(factory, "registry", None)
    if registry is None:
        yield
        return
    mine = registry() if registry.has() else None
    registry.clear()
    try:
        yield
    finally:
        registry.clear()
        if mine is not None:
            registry.set(mine)


# --- resources ------------------------------------------------------------------------


def _entered(
    jobs: Jobs, resources: Mapping[type[Any], object] | None, stack: ExitStack
) -> Mapping[type, object]:
    if resources is not None or jobs.lifespan is None:
        return resources or {}
    manager = jobs.lifespan()
    if not isinstance(manager, AbstractAsyncContextManager):
        return stack.enter_context(manager) or {}
    if _loop_runs():
        raise RunRefusedError(
            "The registry's lifespan is async, and a loop runs in this thread",
            "use drain_async(), or give resources=",
        )
    runner = stack.enter_context(asyncio.Runner())
    stack.callback(lambda: runner.run(_exit(manager)))
    return runner.run(_enter(manager)) or {}


async def _entered_async(
    jobs: Jobs, resources: Mapping[type[Any], object] | None, stack: AsyncExitStack
) -> Mapping[type, object]:
    if resources is not None or jobs.lifespan is None:
        return resources or {}
    manager = jobs.lifespan()
    if isinstance(manager, AbstractAsyncContextManager):
        return await stack.enter_async_context(manager) or {}
    return stack.enter_context(manager) or {}


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _enter(
    manager: AbstractAsyncContextManager[Mapping[type, object] | None],
) -> Mapping[type, object] | None:
    return await manager.__aenter__()


async def _exit(
    manager: AbstractAsyncContextManager[Mapping[type, object] | None],
) -> None:
    await manager.__aexit__(None, None, None)
