"""``run_job``: a handler's body alone, without a job, a claim or a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import attrs
from sqlalchemy import select
from uuid_utils.compat import uuid7

from sqla_jobs import clock
from sqla_jobs.declare.context import AttemptState, JobContext
from sqla_jobs.exc import RunRefusedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sqlalchemy.orm import Session

    from sqla_jobs.asyncio import AsyncJobSession
    from sqla_jobs.declare.job import In, JobSpec, Out
    from sqla_jobs.session import JobSession


@attrs.frozen
class _Facts:
    """What a claim would have told."""

    id: UUID
    name: str
    tenant: str
    queue: str
    attempt: int = 1
    enqueued_by: str | None = None


def run_job(
    session: JobSession,
    job: JobSpec[In, Out],
    input: In,
    /,
    *,
    resources: Mapping[type[Any], object] | None = None,
) -> Out:
    """Call the handler of *job* once, with *session* as ``ctx.session``.

    Input and output go through their codecs, as when they are stored; what the handler
    returns is returned, and what it raises is raised. Nothing is enqueued, claimed or
    settled, ``around`` and ``lifespan`` are not entered, and the session is left as the
    handler leaves it: commit or roll back yourself.

    :param resources: what ``ctx.resource`` gives.
    :raises PayloadError: input or output cannot be stored.
    :raises RunRefusedError: there is no handler, or it is async.
    """
    if job.is_async:
        raise RunRefusedError(
            f"The handler of {job.name!r} is async", "await run_job_async(...)"
        )
    return _run(session, job, input, resources)


async def run_job_async(
    session: AsyncJobSession,
    job: JobSpec[In, Out],
    input: In,
    /,
    *,
    resources: Mapping[type[Any], object] | None = None,
) -> Out:
    """Do what :func:`run_job` does on the running loop, for handlers of both kinds.

    A sync handler gets the sync face of *session*.
    """
    from sqla_jobs.asyncio import AsyncJobContext  # noqa: PLC0415 - needs an extra

    if not job.is_async:
        return await session.run_sync(_run_sync, job, input, resources)
    facts, value = _claimed(job, input)
    state = await session.run_sync(_state, job)
    context = AsyncJobContext(facts, state, resources or {}, lambda: session)
    function = cast("Callable[..., Awaitable[object]]", _function(job))
    return _checked(job, await function(context, value))


def _run_sync(
    session: Session,
    job: JobSpec[In, Out],
    input: In,
    resources: Mapping[type[Any], object] | None,
) -> Out:
    return _run(cast("JobSession", session), job, input, resources)


def _run(
    session: JobSession,
    job: JobSpec[In, Out],
    input: In,
    resources: Mapping[type[Any], object] | None,
) -> Out:
    facts, value = _claimed(job, input)
    state = _state(session, job)
    context = JobContext(facts, state, resources or {}, lambda: session)
    return _checked(job, _function(job)(context, value))


def _function(job: JobSpec[Any, Any]) -> Callable[..., object]:
    if job.function is None:
        raise RunRefusedError(
            f"Job {job.name!r} has no handler", "import the module that binds it"
        )
    return job.function


def _claimed(job: JobSpec[In, Any], input: In) -> tuple[_Facts, In]:
    """Return what a claim would give: the same refusals, and the stored input."""
    job.idempotency_key(input)
    facts = _Facts(uuid7(), job.name, job.tenant_of(input), job.queue)
    return facts, job.input_codec.decode(job.input_codec.encode(input))


def _state(session: Session, job: JobSpec[Any, Any]) -> AttemptState:
    if job.timeout is None:
        return AttemptState()
    now = session.execute(select(clock.now())).scalar_one()
    return AttemptState(now + job.timeout)


def _checked(job: JobSpec[Any, Out], result: object) -> Out:
    if result is not None:
        job.output_codec.encode(result)
    return cast("Out", result)
