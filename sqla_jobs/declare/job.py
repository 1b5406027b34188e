"""One declared job: its name, its types, its rules, and (perhaps elsewhere) its handler."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    final,
    get_args,
    overload,
)
from uuid import UUID

import attrs

from sqla_jobs.declare.handler import Handler, return_type
from sqla_jobs.declare.key import key_text
from sqla_jobs.declare.payload import Codec, codec_for
from sqla_jobs.declare.retry import Retry
from sqla_jobs.declare.tenant import NoTenant, TenantId, tenant_text
from sqla_jobs.exc import HandlerError

if TYPE_CHECKING:
    from sqla_jobs.asyncio import AsyncJobContext, AsyncJobSession
    from sqla_jobs.declare.context import JobContext
    from sqla_jobs.session import JobSession

    _S = TypeVar("_S", bound=JobSession)
    _A = TypeVar("_A", bound=AsyncJobSession)

In = TypeVar("In")
Out = TypeVar("Out")
Out_co = TypeVar("Out_co", covariant=True)

OnDuplicate: TypeAlias = Literal["keep", "replace", "rerun", "error"]
"""What an enqueue does when a job with its identity exists."""

ON_DUPLICATE: Final[tuple[OnDuplicate, ...]] = get_args(OnDuplicate)
"""Every :data:`.OnDuplicate`."""


@attrs.frozen
class DeadJob:
    """The input of an ``on_dead`` job: which job died, and of what."""

    job_id: UUID
    name: str
    error: str


@attrs.frozen(kw_only=True, eq=False)
class JobSpec(Generic[In, Out_co]):
    """A declared job: what ``enqueue`` takes, and what a worker looks up by name.

    Made by ``@jobs.job(...)`` and ``jobs.declare(...)``, never by hand. Frozen, except
    that a declared one gets its handler later, once.
    """

    name: str
    """The unique, stable name that stored rows carry."""
    input_type: type[In]
    """The type of the input."""
    queue: str
    """The queue it is enqueued to."""
    priority: int
    """0 runs first, 9 last."""
    retry: Retry
    """When a failed attempt is run again."""
    timeout: timedelta | None
    """How long one attempt may run."""
    on_duplicate: OnDuplicate
    """What an enqueue does by default when the job exists."""
    retain: timedelta
    """How long the row is kept after success or cancel: the window of deduplication."""
    retain_dead: timedelta
    """How long the row is kept when it is dead."""
    on_dead: JobSpec[DeadJob, Any] | None
    """A job that is enqueued when one of this kind dies."""
    input_codec: Codec[In]
    """Reads and writes inputs."""
    output_limit: int
    """The largest output, in bytes of its JSON."""
    declared_at: str
    """``module:line`` of the declaration."""
    key_of: Callable[[In], str] = attrs.field(repr=False)
    """``idempotency_key=`` as declared; :meth:`.idempotency_key` checks what it gives."""
    tenant: Callable[[In], TenantId] | NoTenant = attrs.field(repr=False)
    """``tenant=`` as declared; :meth:`.tenant_of` checks what it gives."""
    output_type: object = attrs.field(default=None, repr=False)
    """``output=`` of ``declare``; else ``None``, and the handler's annotation counts."""
    _handler: Handler | None = attrs.field(default=None, repr=False)

    @property
    def function(self) -> Callable[..., object] | None:
        """The handler, called as ``function(ctx, input)``; ``None`` while not bound."""
        return None if self._handler is None else self._handler.function

    @property
    def is_async(self) -> bool | None:
        """Whether the handler is ``async def``; ``None`` while none is bound."""
        return None if self._handler is None else self._handler.is_async

    def idempotency_key(self, input: In, /) -> str:
        """Return the stored key of *input*: checked, and hashed beyond 200 bytes.

        Raises :exc:`.IdempotencyKeyRequiredError` when the declared function gives
        nothing usable, :exc:`.PayloadError` for NUL and lone surrogates.
        """
        return key_text(self.key_of(input), job=self.name)

    def tenant_of(self, input: In, /) -> str:
        """Return the stored text of *input*'s tenant; empty with ``NO_TENANT``.

        Raises :exc:`.TenantRequiredError` when the declared function gives nothing
        usable.
        """
        tenant = self.tenant
        value = tenant if isinstance(tenant, NoTenant) else tenant(input)
        return tenant_text(value, job=self.name)

    @cached_property
    def output_codec(self) -> Codec[Any]:
        """Reads and writes outputs.

        Their type is ``output=`` of ``declare``, else the handler's return annotation,
        resolved at first use: by then the names it mentions exist. Without one, or
        when it cannot be resolved, outputs must be plain JSON values.
        """
        type_ = self.output_type
        if type_ is None:
            type_ = Any if self._handler is None else return_type(self._handler)
        return codec_for(type_, what="output", limit=self.output_limit)

    def bind(self, fn: Callable[..., object], /) -> None:
        """Make *fn* the handler; :exc:`.HandlerError` when there is one or it cannot be."""
        if self._handler is not None:
            raise HandlerError(
                self.name,
                Handler.where(fn),
                f"comes second: {Handler.where(self._handler.function)} is its handler",
            )
        # The one thing of a spec that is written after it was made, and only once.
        object.__setattr__(self, "_handler", Handler.of(fn, job=self.name))


@attrs.frozen(kw_only=True, eq=False)
class Declared(JobSpec[In, Out]):
    """A job whose handler stands elsewhere, so that enqueuers need not import it.

    A worker must import the module that binds the handler; else it does not know the job.
    """

    if TYPE_CHECKING:

        @overload
        def handler(
            self,
            fn: Callable[[AsyncJobContext[_A], In], Coroutine[Any, Any, Out]],
            /,
        ) -> JobSpec[In, Out]: ...
        @overload
        def handler(
            self, fn: Callable[[JobContext[_S], In], Out], /
        ) -> JobSpec[In, Out]: ...

    def handler(self, fn: Callable[..., Any], /) -> JobSpec[In, Out]:
        """Make *fn* the handler of this job (a decorator); return the job.

        Raises :exc:`.HandlerError` when it has one already, or *fn* cannot be one.
        """
        self.bind(fn)
        return self


@final
class AsyncHandlerNeedsAsyncJobContext:
    """What a type checker gives for ``async def`` with ``JobContext``: no job.

    At run time the declaration is refused with :exc:`.HandlerError`.
    """


class JobDecorator(Protocol[In]):
    """What ``jobs.job(...)`` returns: makes the decorated handler a :class:`.JobSpec`."""

    @overload
    def __call__(
        self,
        fn: Callable[[AsyncJobContext[_A], In], Coroutine[Any, Any, Out]],
        /,
    ) -> JobSpec[In, Out]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # refuses async def + JobContext by returning no JobSpec
        self,
        fn: Callable[[JobContext[_S], In], Coroutine[Any, Any, Any]],
        /,  # pyright: ignore[reportOverlappingOverload]
    ) -> AsyncHandlerNeedsAsyncJobContext: ...
    @overload
    def __call__(
        self, fn: Callable[[JobContext[_S], In], Out], /
    ) -> JobSpec[In, Out]: ...
