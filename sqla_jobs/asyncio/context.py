"""What an async handler is given."""

from __future__ import annotations

from typing import Generic

from typing_extensions import TypeVar

from sqla_jobs.asyncio.session import AsyncJobSession
from sqla_jobs.declare.context import SessionContext

A_co = TypeVar("A_co", bound=AsyncJobSession, default=AsyncJobSession, covariant=True)


class AsyncJobContext(SessionContext[A_co], Generic[A_co]):
    """What an async handler is given: the facts, and a session on the handlers' loop."""

    __slots__ = ()
