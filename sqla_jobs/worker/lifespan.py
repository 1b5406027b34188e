"""The registry's ``lifespan``: resources made once per worker process."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING

from sqla_jobs.exc import WorkerConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqla_jobs.declare.registry import Lifespan
    from sqla_jobs.worker.loop import AsyncRunner

LIMIT = 60.0
"""Seconds that the entering or leaving of an async lifespan may take."""


class Resources:
    """Enters a lifespan and leaves it; an async one on the handlers' loop."""

    def __init__(self, lifespan: Lifespan | None) -> None:
        self._manager = None if lifespan is None else lifespan()
        if self._manager is not None and not isinstance(
            self._manager, AbstractAsyncContextManager | AbstractContextManager
        ):
            raise WorkerConfigError(
                "lifespan= gives no context manager",
                "decorate it with contextlib.contextmanager or asynccontextmanager",
            )

    @property
    def is_async(self) -> bool:
        """Whether it has to be entered on a loop."""
        return isinstance(self._manager, AbstractAsyncContextManager)

    def enter(self, runner: AsyncRunner | None) -> Mapping[type, object]:
        """Make the resources; an error of the lifespan's passes through."""
        manager = self._manager
        if manager is None:
            return {}
        if isinstance(manager, AbstractContextManager) and not self.is_async:
            return manager.__enter__() or {}
        assert runner is not None  # noqa: S101 - made when the lifespan is async
        assert isinstance(manager, AbstractAsyncContextManager)  # noqa: S101
        entering = manager.__aenter__()

        async def enter() -> Mapping[type, object] | None:
            return await entering

        return runner.submit(enter()).result(LIMIT) or {}

    def leave(self, runner: AsyncRunner | None, limit: float) -> None:
        """Give the resources back; an error of the lifespan's passes through."""
        manager = self._manager
        if manager is None:
            return
        if isinstance(manager, AbstractContextManager) and not self.is_async:
            manager.__exit__(None, None, None)
            return
        assert runner is not None  # noqa: S101 - made when the lifespan is async
        assert isinstance(manager, AbstractAsyncContextManager)  # noqa: S101
        leaving = manager.__aexit__

        async def leave() -> None:
            await leaving(None, None, None)

        runner.submit(leave()).result(limit)
