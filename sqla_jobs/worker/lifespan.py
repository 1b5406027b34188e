"""The registry's ``lifespan``: resources made once per worker process."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from sqla_jobs.exc import WorkerConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from typing import TypeAlias

    from sqla_jobs.declare.registry import Lifespan
    from sqla_jobs.worker.loop import AsyncRunner

    Given: TypeAlias = Mapping[type, object] | None

R = TypeVar("R")

LIMIT = 60.0
"""Seconds that the entering or leaving of an async lifespan may take."""


class Resources:
    """Enters a lifespan and leaves it; an async one on the handlers' loop."""

    def __init__(self, lifespan: Lifespan | None) -> None:
        manager = None if lifespan is None else lifespan()
        self._async: AbstractAsyncContextManager[Given] | None = None
        self._sync: AbstractContextManager[Given] | None = None
        if isinstance(manager, AbstractAsyncContextManager):
            self._async = manager
        elif isinstance(manager, AbstractContextManager):
            self._sync = manager
        elif manager is not None:
            raise WorkerConfigError(
                "lifespan= gives no context manager",
                "decorate it with contextlib.contextmanager or asynccontextmanager",
            )

    @property
    def is_async(self) -> bool:
        """Whether it has to be entered on a loop."""
        return self._async is not None

    def enter(self, runner: AsyncRunner | None) -> Mapping[type, object]:
        """Make the resources; an error of the lifespan's passes through."""
        given: Given = None
        if self._sync is not None:
            given = self._sync.__enter__()
        elif self._async is not None and runner is not None:
            given = runner.submit(_awaited(self._async.__aenter__())).result(LIMIT)
        return given or {}

    def leave(self, runner: AsyncRunner | None, limit: float) -> None:
        """Give the resources back; an error of the lifespan's passes through."""
        if self._sync is not None:
            self._sync.__exit__(None, None, None)
        elif self._async is not None and runner is not None:
            leaving = self._async.__aexit__(None, None, None)
            runner.submit(_awaited(leaving)).result(limit)


async def _awaited(it: Awaitable[R]) -> R:
    return await it
