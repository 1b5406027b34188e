"""``Jobs``: the registry of what an application declares. No engine, no I/O."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from sqla_jobs.declare.backfills import BackfillRegistry
from sqla_jobs.declare.declarations import Declarations, caller
from sqla_jobs.declare.duration import Duration, parse_duration
from sqla_jobs.declare.job import (
    ON_DUPLICATE,
    DeadJob,
    Declared,
    In,
    JobDecorator,
    JobSpec,
    OnDuplicate,
    Out,
)
from sqla_jobs.declare.payload import codec_for
from sqla_jobs.declare.retry import Retry
from sqla_jobs.declare.tenant import NoTenant, TenantId
from sqla_jobs.declare.text import check_name
from sqla_jobs.exc import (
    IdempotencyKeyRequiredError,
    InvalidOptionError,
    JobNotDeclaredError,
    TenantRequiredError,
)

if TYPE_CHECKING:
    from sqla_jobs.declare.context import JobFacts

Lifespan: TypeAlias = (
    Callable[[], AbstractContextManager[Mapping[type, object] | None]]
    | Callable[[], AbstractAsyncContextManager[Mapping[type, object] | None]]
)
"""A context manager, sync or async, that gives a worker process its resources by type."""

Around: TypeAlias = "Callable[[JobFacts], AbstractContextManager[object]]"
"""A context manager that is entered around every attempt."""

PAYLOAD_LIMIT: Final = 256 * 1024
"""The largest input and output unless set otherwise, in bytes of JSON."""

RETAIN_DEAD: Final = timedelta(days=90)
"""How long dead jobs are kept, or as long as ``retain`` where that is longer."""

_F = TypeVar("_F", bound=Callable[..., Any])


def _explains_what_is_missing(declare: _F) -> _F:
    """Turn a forgotten key or tenant into the error that tells the remedy.

    The parameters have no default, so that type checkers see the mistake first.
    """

    @functools.wraps(declare)
    def checked(self: Jobs, name: str, **options: object) -> object:
        if options.get("idempotency_key") is None:
            raise IdempotencyKeyRequiredError(name)
        if options.get("tenant") is None:
            raise TenantRequiredError(name)
        return declare(self, name, **options)

    return cast("_F", checked)


class Jobs(BackfillRegistry):
    """The registry of an application's jobs.

    ``lifespan`` gives resources once per worker process (``ctx.resource(Type)``);
    ``around`` wraps every attempt (an app context, log bindings). ``retain`` is how
    long succeeded and cancelled jobs are kept, and so how long an identity stays
    taken; dead jobs are kept 90 days, or ``retain`` if that is longer. ``input_limit``
    and ``output_limit`` are in bytes of JSON.
    """

    def __init__(
        self,
        *,
        lifespan: Lifespan | None = None,
        around: Around | None = None,
        retain: Duration = "7d",
        input_limit: int = PAYLOAD_LIMIT,
        output_limit: int = PAYLOAD_LIMIT,
    ) -> None:
        super().__init__()
        self.lifespan = lifespan
        self.around = around
        self.retain = parse_duration(retain, field="retain")
        self.input_limit = _limit(input_limit, "input_limit")
        self.output_limit = _limit(output_limit, "output_limit")
        self._specs = Declarations[JobSpec[Any, Any]]()
        self.specs: Mapping[str, JobSpec[Any, Any]] = self._specs.view
        """Every declared job by its name, included registries' too; a live view."""

    @_explains_what_is_missing
    def job(
        self,
        name: str,
        *,
        input: type[In],
        idempotency_key: Callable[[In], str],
        tenant: Callable[[In], TenantId] | NoTenant,
        queue: str = "default",
        priority: int = 5,
        retry: Retry = Retry(),  # noqa: B008 - frozen
        timeout: Duration | None = None,
        on_duplicate: OnDuplicate = "keep",
        retain: Duration | None = None,
        on_dead: JobSpec[DeadJob, Any] | None = None,
    ) -> JobDecorator[In]:
        """Declare the decorated function as the job *name*; it becomes a :class:`.JobSpec`.

        :param input: the type of the input: an attrs class, dataclass, TypedDict,
         pydantic model or plain type.
        :param idempotency_key: names the piece of work an input asks for. Together with
         tenant and name it is the identity: there is one row for it at a time.
        :param tenant: whose work it is, or ``NO_TENANT``.
        :param priority: 0 runs first, 9 last.
        :param timeout: how long one attempt may run.
        :param on_dead: a job to enqueue when one of these dies.

        Bad options raise a :exc:`.DeclarationError` here; a name that is taken raises
        :exc:`.JobNameTakenError`, and a function that cannot be a handler
        :exc:`.HandlerError`, when the function is decorated.
        """
        spec: Declared[In, Any] = self._declare(
            name,
            input=input,
            output=None,
            idempotency_key=idempotency_key,
            tenant=tenant,
            queue=queue,
            priority=priority,
            retry=retry,
            timeout=timeout,
            on_duplicate=on_duplicate,
            retain=retain,
            on_dead=on_dead,
        )

        def decorate(fn: Callable[..., Any], /) -> JobSpec[In, Any]:
            spec.bind(fn)
            self._specs.add(spec)
            return spec

        return cast("JobDecorator[In]", decorate)

    @_explains_what_is_missing
    def declare(
        self,
        name: str,
        *,
        input: type[In],
        output: type[Out],
        idempotency_key: Callable[[In], str],
        tenant: Callable[[In], TenantId] | NoTenant,
        queue: str = "default",
        priority: int = 5,
        retry: Retry = Retry(),  # noqa: B008 - frozen
        timeout: Duration | None = None,
        on_duplicate: OnDuplicate = "keep",
        retain: Duration | None = None,
        on_dead: JobSpec[DeadJob, Any] | None = None,
    ) -> Declared[In, Out]:
        """Declare the job *name* without its handler, for images that only enqueue.

        The handler is bound with ``@spec.handler`` in a module that workers import. The
        options are those of :meth:`.job`; *output* is the handler's return type.
        """
        spec: Declared[In, Out] = self._declare(
            name,
            input=input,
            output=type(None) if output is None else output,
            idempotency_key=idempotency_key,
            tenant=tenant,
            queue=queue,
            priority=priority,
            retry=retry,
            timeout=timeout,
            on_duplicate=on_duplicate,
            retain=retain,
            on_dead=on_dead,
        )
        self._specs.add(spec)
        return spec

    def include(self, other: Jobs, /) -> None:
        """Add the jobs and backfills of *other*, those declared there so far and later.

        They keep the ``retain`` and limits of *other*, and run with the ``lifespan`` and
        ``around`` of this registry. So *other* must have neither, or the same: a
        resource or app context that silently went missing would fail at the first job
        (:exc:`.InvalidOptionError`). Taken names raise :exc:`.JobNameTakenError`, and
        then nothing is added.
        """
        if other is self or self._specs.is_included_by(other._specs):
            raise InvalidOptionError(
                "include()", "would make a registry part of itself"
            )
        for option in ("lifespan", "around"):
            theirs = getattr(other, option)
            if theirs is not None and theirs is not getattr(self, option):
                raise InvalidOptionError(
                    f"include(): {option}",
                    "is set on the included registry and would not be used: set it on "
                    "the including one",
                )
        # All of it is looked at before any of it is added.
        for spec in other.specs.values():
            self._specs.check_free(spec)
        for backfill in other.backfills.values():
            self._backfills.check_free(backfill)
        self._specs.include(other._specs)
        self._backfills.include(other._backfills)

    def get(self, name: str, /) -> JobSpec[Any, Any] | None:
        """Return the job declared as *name*, or ``None``."""
        return self.specs.get(name)

    def __getitem__(self, name: str, /) -> JobSpec[Any, Any]:
        """Return the job declared as *name*; raise :exc:`.JobNotDeclaredError`."""
        try:
            return self.specs[name]
        except KeyError:
            raise JobNotDeclaredError(name) from None

    def __contains__(self, name: object, /) -> bool:
        return name in self.specs

    def _declare(
        self,
        name: str,
        *,
        input: type[In],
        output: object,
        idempotency_key: Callable[[In], str],
        tenant: Callable[[In], TenantId] | NoTenant,
        queue: str,
        priority: int,
        retry: Retry,
        timeout: Duration | None,
        on_duplicate: OnDuplicate,
        retain: Duration | None,
        on_dead: JobSpec[DeadJob, Any] | None,
    ) -> Declared[In, Any]:
        """Check every option and return the spec, not registered yet."""
        check_name(name, option="name")
        check_name(queue, option="queue", job=name)
        _check_functions(name, idempotency_key, tenant)
        _check_kinds(name, priority, retry, on_duplicate, on_dead)
        kept = self.retain if retain is None else parse_duration(retain, field="retain")
        return Declared(
            name=name,
            input_type=input,
            output_type=output,
            input_codec=codec_for(input, what="input", limit=self.input_limit),
            output_limit=self.output_limit,
            key_of=idempotency_key,
            tenant=tenant,
            queue=queue,
            priority=priority,
            retry=retry,
            timeout=None
            if timeout is None
            else parse_duration(timeout, field="timeout"),
            on_duplicate=on_duplicate,
            retain=kept,
            retain_dead=max(kept, RETAIN_DEAD),
            on_dead=on_dead,
            declared_at=caller(),
        )


def _limit(value: object, option: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOptionError(option, f"is {value!r}, not a number of bytes")
    return value


def _check_functions(name: str, idempotency_key: object, tenant: object) -> None:
    if not callable(idempotency_key):
        kind = type(idempotency_key).__name__
        raise IdempotencyKeyRequiredError(name, f"is a {kind}, not a function")
    if not callable(tenant) and not isinstance(tenant, NoTenant):
        kind = type(tenant).__name__
        raise TenantRequiredError(name, f"is a {kind}, not a function")


def _check_kinds(
    name: str, priority: object, retry: object, on_duplicate: object, on_dead: object
) -> None:
    if (
        isinstance(priority, bool)
        or not isinstance(priority, int)
        or not 0 <= priority <= 9
    ):
        raise InvalidOptionError("priority", f"is {priority!r}, not 0 to 9", name)
    if not isinstance(retry, Retry):
        raise InvalidOptionError("retry", f"is {retry!r}, not a Retry(...)", name)
    if on_duplicate not in ON_DUPLICATE:
        modes = ", ".join(ON_DUPLICATE)
        raise InvalidOptionError(
            "on_duplicate", f"is {on_duplicate!r}, not one of {modes}", name
        )
    if on_dead is None:
        return
    if not isinstance(on_dead, JobSpec) or on_dead.input_type is not DeadJob:
        raise InvalidOptionError("on_dead", "is no job with input=DeadJob", name)
