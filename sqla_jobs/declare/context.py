"""What a handler is given beside its input: facts, resources, a session.

The executor builds one context for every attempt, so building one only stores four
references; whatever costs more (a UUID from text, the logger, the session) is made when
it is first asked for.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

from typing_extensions import TypeVar as DefaultTypeVar

from sqla_jobs.exc import JobAbortedError, ResourceMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping
    from datetime import datetime

    from sqla_jobs.session import JobSession

R = TypeVar("R")
H_co = TypeVar("H_co", covariant=True)
S_co = DefaultTypeVar("S_co", bound="JobSession", default="JobSession", covariant=True)

_logger: Final = logging.getLogger("sqla_jobs.job")


class ClaimFacts(Protocol):
    """What a context reads off the claim; ``tenant`` is the stored text."""

    @property
    def id(self) -> UUID | str:
        """The job's id."""

    @property
    def name(self) -> str:
        """The job's name."""

    @property
    def tenant(self) -> str:
        """The tenant's text, empty for none."""

    @property
    def queue(self) -> str:
        """The queue it was claimed from."""

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""

    @property
    def enqueued_by(self) -> str | None:
        """Who enqueued it."""


class AttemptState:
    """What happens to a running attempt from outside; written by the engine's threads.

    Each attribute is one reference that is replaced as a whole, so a handler's thread
    reads it without a lock: it sees the old or the new value, never half of one.
    ``abort`` is the error that ended the attempt (:exc:`.JobTimeoutError`,
    :exc:`.LeaseLostError`); ``cancelled`` is true from then on, too.
    """

    __slots__ = ("abort", "cancel_reason", "cancelled", "deadline")

    def __init__(self, deadline: datetime | None = None) -> None:
        self.deadline = deadline
        self.cancelled = False
        self.cancel_reason: str | None = None
        self.abort: BaseException | None = None


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs to ``sqla_jobs.job`` with ``job_id``, ``job_name``, ``attempt`` and ``tenant``.

    They are attributes of each record; an ``extra=`` of the call is merged in.
    """

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[object, MutableMapping[str, Any]]:
        """Merge the job's facts into the record's ``extra``."""
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


class JobFacts:
    """What is known about the running attempt; what ``around=`` is given.

    Built by the worker. Reading it costs no SQL.
    """

    __slots__ = ("_claim", "_log", "_resources", "_state")

    def __init__(
        self,
        claim: ClaimFacts,
        attempt_state: AttemptState,
        resources: Mapping[type, object],
    ) -> None:
        self._claim = claim
        self._state = attempt_state
        self._resources = resources
        self._log: JobLogger | None = None

    @property
    def job_id(self) -> UUID:
        """The job's id: the same for every attempt, good as a key for other systems."""
        job_id = self._claim.id
        return job_id if isinstance(job_id, UUID) else UUID(job_id)

    @property
    def name(self) -> str:
        """The job's declared name."""
        return self._claim.name

    @property
    def tenant(self) -> str | None:
        """The tenant's text; ``None`` with ``NO_TENANT``."""
        return self._claim.tenant or None

    @property
    def queue(self) -> str:
        """The queue this job was claimed from."""
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self._claim.attempt

    @property
    def enqueued_by(self) -> str | None:
        """Who enqueued the job, if that was said: attribution, never authority."""
        return self._claim.enqueued_by

    @property
    def deadline(self) -> datetime | None:
        """When this attempt times out (aware, UTC); ``None`` without ``timeout=``."""
        return self._state.deadline

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should end: cancelled, timed out, or its lease was lost."""
        return self._state.cancelled or self._state.abort is not None

    def raise_if_cancelled(self) -> None:
        """Raise what ended this attempt, if anything did.

        :exc:`.JobTimeoutError` past the deadline, :exc:`.LeaseLostError` when another
        worker has the job, :exc:`.JobAbortedError` when it was cancelled. Call it in
        loops that take long; let the error through.
        """
        state = self._state
        if state.abort is not None:
            raise state.abort
        if state.cancelled:
            raise JobAbortedError(self.job_id, state.cancel_reason)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger (``sqla_jobs.job``) whose records carry this attempt's facts."""
        if self._log is None:
            facts = {
                "job_id": str(self.job_id),
                "job_name": self.name,
                "attempt": self.attempt,
                "tenant": self.tenant,
            }
            self._log = JobLogger(_logger, facts)
        return self._log

    def resource(self, type_: type[R], /) -> R:
        """Return what the registry's ``lifespan`` gave under *type_*.

        One object per worker process, shared by all its attempts. Raises
        :exc:`.ResourceMissingError` naming what there is.
        """
        try:
            found = self._resources[type_]
        except KeyError:
            raise ResourceMissingError(type_, self._resources) from None
        return found  # type: ignore[return-value]  # the mapping's keys promise it


class SessionContext(JobFacts, Generic[H_co]):
    """The facts, and a session of the application: what both kinds of handlers share."""

    __slots__ = ("_open_session", "session_opened")

    def __init__(
        self,
        claim: ClaimFacts,
        attempt_state: AttemptState,
        resources: Mapping[type, object],
        open_session: Callable[[], H_co],
    ) -> None:
        super().__init__(claim, attempt_state, resources)
        self._open_session = open_session
        # The engine's own: the session if the handler asked for one, to be committed
        # with the job's completion or rolled back. Handlers use `session`.
        self.session_opened: H_co | None = None

    @property
    def session(self) -> H_co:
        """A session from the worker's factory, opened at first use; unused, it is free.

        What it writes commits in the transaction that completes the job, and is rolled
        back with every other outcome. A commit of your own in the middle is fenced:
        it raises :exc:`.LeaseLostError` when the job was given to another worker.
        """
        opened = self.session_opened
        if opened is None:
            opened = self.session_opened = self._open_session()
        return opened


class JobContext(SessionContext[S_co], Generic[S_co]):
    """What a sync handler is given: the facts, and a session of the application."""

    __slots__ = ()
