"""Rescue: free the jobs of workers whose lease ran out, and of passed deadlines.

Any worker may do it at any time. Rows are stepped over when somebody holds them, and
judged again under their lock, so a settle that wins the race is never undone. A rescue
counts as an attempt: a job that kills its process ends among the dead letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqla_jobs.dialects import Rescued, dialect_of, job_connection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from sqlalchemy.orm import Session

BATCH = 500


def rescue(
    session: Session, *, grace: timedelta, delay: timedelta, limit: int = BATCH
) -> list[Rescued]:
    """Free at most *limit* jobs, in the session's transaction; one statement.

    Each becomes ``ready`` after *delay*, or ``dead`` when its attempts are used up, or
    ``cancelled`` when that was asked; its fence grows and the attempt is recorded as
    ``lost`` (or ``timed_out``).

    :param grace: how long past its lease or deadline an attempt is left alone; the
        worker's own fence closes well before.
    """
    connection = job_connection(session)
    return dialect_of(connection).rescue(
        connection, grace=grace, delay=delay, limit=limit
    )


def end_backends(session: Session, worker_ids: Sequence[str]) -> int:
    """End the idle transactions that dead workers left open; return how many.

    A process that is frozen or cut off keeps its row locks, which would block the
    attempt that comes after it. Needs the right to signal backends of the same role;
    where it is missing, the database raises.
    """
    connection = job_connection(session)
    return dialect_of(connection).end_backends(connection, worker_ids)


__all__ = ["Rescued", "end_backends", "rescue"]
