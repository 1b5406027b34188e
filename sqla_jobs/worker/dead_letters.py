"""Deaths that are told to a job: ``on_dead=``, in the transaction of the death."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import select

from sqla_jobs.declare.job import DeadJob
from sqla_jobs.models import Job
from sqla_jobs.queue.enqueue import enqueue
from sqla_jobs.states import JobState
from sqla_jobs.worker.service import logger

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from sqla_jobs.declare.job import JobSpec


def tell(session: Session, spec: JobSpec[Any, Any], job_id: str, error: str) -> None:
    """Enqueue the ``on_dead`` job of *spec* if *job_id* is dead, in the transaction.

    Not when the settling made it something else: cancelled by request, or ready again
    by a rerun. What the job's own functions raise is logged: a death must be recorded
    also when it cannot be told.
    """
    if spec.on_dead is None:
        return
    state = session.scalar(select(Job.state).where(Job.id == UUID(job_id)))
    if state != JobState.DEAD:
        return
    try:
        enqueue(session, spec.on_dead, DeadJob(UUID(job_id), spec.name, error))
    except Exception:
        logger.exception("the death of %s %s cannot be told", spec.name, job_id)
