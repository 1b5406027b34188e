"""What an async handler is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from typing_extensions import TypeVar

from sqla_jobs.asyncio.session import AsyncJobSession
from sqla_jobs.declare.context import JobFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqla_jobs.declare.context import AttemptState, ClaimFacts

A_co = TypeVar("A_co", bound=AsyncJobSession, default=AsyncJobSession, covariant=True)


class AsyncJobContext(JobFacts, Generic[A_co]):
    """What an async handler is given: the facts, and a session on the handlers' loop."""

    __slots__ = ("_open_session", "session_opened")

    def __init__(
        self,
        claim: ClaimFacts,
        attempt_state: AttemptState,
        resources: Mapping[type, object],
        open_session: Callable[[], A_co],
    ) -> None:
        """Make the context of one attempt; the engine does it."""
        super().__init__(claim, attempt_state, resources)
        self._open_session = open_session
        # The engine's own: the session if the handler asked for one, to be committed
        # with the job's completion or rolled back. Handlers use `session`.
        self.session_opened: A_co | None = None

    @property
    def session(self) -> A_co:
        """A session from the worker's factory, opened at first use; unused, it is free.

        What it writes commits in the transaction that completes the job, and is rolled
        back with every other outcome. A commit of your own in the middle is fenced:
        it raises :exc:`.LeaseLostError` when the job was given to another worker.
        """
        opened = self.session_opened
        if opened is None:
            opened = self.session_opened = self._open_session()
        return opened
