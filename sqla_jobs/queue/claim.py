"""Claim: take ready jobs whose time has come, under the worker's lease.

A claim is one statement in a transaction of its own. It raises the job's fence; every
later write on behalf of this attempt has to match it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqla_jobs.dialects import Claimed as Claim
from sqla_jobs.dialects import dialect_of, job_connection

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


__all__ = ["Claim", "claim", "inputs_of", "next_due"]
