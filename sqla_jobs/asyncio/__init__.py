"""The async doors: AsyncJobSession, and what async handlers are given.

Needs the extra ``sqla_jobs[asyncio]`` (greenlet).
"""

from sqla_jobs.asyncio.context import AsyncJobContext
from sqla_jobs.asyncio.session import AsyncJobSession

__all__ = ["AsyncJobContext", "AsyncJobSession"]
