"""Handlers: which functions can be one, and what their annotations say.

Annotations are read one by one and may be strings: a linter may have moved an import
under ``TYPE_CHECKING``. What cannot be resolved is not guessed.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, get_origin, get_type_hints

import attrs

from sqla_jobs.declare.context import JobContext, JobFacts
from sqla_jobs.exc import HandlerError

_UNKNOWN = object()


@attrs.frozen
class Handler:
    """A checked handler and its kind."""

    function: Callable[..., object]
    is_async: bool

    @classmethod
    def of(cls, function: Callable[..., object], *, job: str) -> Handler:
        """Return *function* as a handler; raise :exc:`.HandlerError` if it cannot be one."""
        if isinstance(function, type) or not callable(function):
            raise HandlerError(job, repr(function), "is not a function")
        where = cls.where(function)
        kind = _called(function)
        if inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind):
            raise HandlerError(job, where, "is a generator: return, do not yield")
        try:
            signature = inspect.signature(function)
            signature.bind(None, None)
        except (TypeError, ValueError) as error:
            raise HandlerError(
                job, where, "must take two positional arguments, (ctx, input)"
            ) from error
        is_async = inspect.iscoroutinefunction(kind)
        _check_context(function, signature, job=job, is_async=is_async)
        return cls(function, is_async)

    @staticmethod
    def where(function: object) -> str:
        """Return ``module.function`` and its line, for messages."""
        plain = _written(function) if callable(function) else function
        name = getattr(plain, "__qualname__", repr(plain))
        code = getattr(plain, "__code__", None)
        line = f":{code.co_firstlineno}" if code is not None else ""
        return f"{getattr(plain, '__module__', '?')}.{name}{line}"


def _called(function: Callable[..., object]) -> Callable[..., object]:
    """Return what runs when *function* is called: an object's ``__call__``, or itself.

    A decorator's wrapper counts, not what it wraps: it decides what is returned.
    """
    if inspect.isroutine(function) or isinstance(function, functools.partial):
        return function
    return type(function).__call__


def _written(function: Callable[..., object]) -> Callable[..., object]:
    """Return what was written with ``def``: the one that has the annotations."""
    function = inspect.unwrap(_called(function))
    if isinstance(function, functools.partial):
        return _written(function.func)
    return function


def return_type(handler: Handler) -> object:
    """Return the type that *handler*'s return annotation names.

    ``Any`` (plain JSON values) when there is no annotation or it cannot be resolved.
    """
    annotations = getattr(_written(handler.function), "__annotations__", {})
    annotation = annotations.get("return", _UNKNOWN)
    resolved = _resolve(handler.function, annotation)
    return Any if resolved is _UNKNOWN else resolved


def _check_context(
    function: Callable[..., object],
    signature: inspect.Signature,
    *,
    job: str,
    is_async: bool,
) -> None:
    """Refuse ``async def`` with the sync context, and the other way round."""
    first = next(iter(signature.parameters.values()))
    annotation = _resolve(function, first.annotation)
    context = get_origin(annotation) or annotation
    if not isinstance(context, type) or not issubclass(context, JobFacts):
        return
    # Whatever is no JobContext is the async context, which this layer cannot import.
    takes_sync = issubclass(context, JobContext)
    if context is JobFacts or takes_sync != is_async:
        return
    remedy = (
        "is async def, but takes JobContext: take AsyncJobContext"
        if is_async
        else f"is a plain def, but takes {context.__name__}: take JobContext, or make it "
        "async def"
    )
    raise HandlerError(job, Handler.where(function), remedy)


def _resolve(function: Callable[..., object], annotation: object) -> object:
    if annotation is inspect.Parameter.empty or annotation is _UNKNOWN:
        return _UNKNOWN
    names = getattr(_written(function), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, globalns=names, include_extras=True)["it"]
    except Exception:  # the annotation is user code: a NameError, or anything else
        return _UNKNOWN
