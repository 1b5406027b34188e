"""Claim: take ready jobs whose time has come, under the worker's lease.

A claim is one statement in a transaction of its own. It raises the job's fence; every
later write on behalf of this attempt has to match it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from sqlalchemy import select

from sqla_jobs.dialects import Claimed as Claim
from sqla_jobs.dialects import dialect_of, job_connection
from sqla_jobs.models import Job
from sqla_jobs.states import JobState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy.orm import Session

INLINE_BYTES: Final = 65_536
"""Inputs that one claim brings along, all together; larger ones are fetched after it.

The answer has to fit into the socket's buffers: a client that freezes while the server
still sends would keep the claim's transaction open, and its rows hidden.
"""


def claim(
    session: Session,
    worker_id: str,
    rooms: Mapping[str, int],
    *,
    limits: Mapping[str, float] | None = None,
    unknown: Collection[str] = (),
) -> list[Claim]:
    """Claim up to ``rooms[queue]`` jobs of each queue, in the session's transaction.

    Better priorities come first, then older ``run_at``; rows that others hold are
    stepped over. Returns nothing when the worker's own lease is over.

    :param limits: seconds an attempt may take, per job name.
    :param unknown: names that this worker cannot run.
    """
    rooms = {queue: room for queue, room in rooms.items() if room > 0}
    if not rooms:
        return []
    connection = job_connection(session)
    claimed = dialect_of(connection).claim(
        connection,
        worker_id=worker_id,
        rooms=rooms,
        limits=limits or {},
        unknown=unknown,
        inline=INLINE_BYTES // sum(rooms.values()),
    )
    claimed.sort(key=lambda c: (c.priority, c.run_at, c.id))
    return claimed


def inputs_of(session: Session, ids: Sequence[str]) -> dict[str, str]:
    """Return the inputs of jobs *ids* as JSON text, by id."""
    connection = job_connection(session)
    return dialect_of(connection).inputs_of(connection, ids)


def next_due(
    session: Session, queues: Sequence[str], unknown: Collection[str] = ()
) -> float | None:
    """Return the seconds until a job of *queues* is due; None when none is stored.

    Zero or less: one is due now.
    """
    connection = job_connection(session)
    return dialect_of(connection).next_due(connection, queues, unknown)


def owned(session: Session, worker_id: str) -> list[Claim]:
    """Return what *worker_id* holds, without inputs; one SELECT.

    After a claim whose answer was lost this tells what it took.
    """
    table = Job.__table__.c
    columns = [table[name] for name in Claim._fields if name != "input"]
    query = select(*columns).where(
        Job.state == JobState.RUNNING, Job.worker_id == UUID(worker_id)
    )
    rows = job_connection(session).execute(query)
    return [Claim._make((str(id_), *facts, None)) for id_, *facts in rows]


__all__ = ["Claim", "claim", "inputs_of", "next_due", "owned"]
