"""Renew: the one lease of a worker process, and the news its heartbeat brings back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import attrs
from sqlalchemy import delete, insert, update

from sqla_jobs import clock
from sqla_jobs.dialects import dialect_of, job_connection
from sqla_jobs.models import WorkerRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import CursorResult
    from sqlalchemy.orm import Session

EXPIRED_FOR: Final = timedelta(days=1)
"""How far in the past a lease is set that ends on purpose: beyond any grace."""


@attrs.frozen(kw_only=True)
class Condition:
    """What a worker tells of itself with its beat."""

    backends: Sequence[int] = ()
    """Server processes that serve its handlers' sessions."""
    listening: bool | None = None
    """Whether notifications are known to arrive; None where there are none."""
    stuck: int = 0
    """Abandoned attempts whose handlers have not come back."""
    sign: tuple[str, str] | None = None
    """Channel and payload of a notification that is sent along, for its listener."""


@attrs.frozen
class Renewal:
    """What one heartbeat learnt."""

    alive: bool
    """Whether the lease was renewed; once False, this worker id is dead for good."""
    lost: list[str] = attrs.field(factory=list)
    """Running jobs that are not this worker's any more."""
    cancelled: dict[str, str | None] = attrs.field(factory=dict)
    """Running jobs that were asked to stop, with the reason."""
    paused: frozenset[str] = frozenset()
    schema_version: int = 0
    min_code_version: int = 0


def register_worker(
    session: Session,
    *,
    worker_id: str,
    host: str,
    pid: int,
    version: str,
    queues: Mapping[str, int],
    ttl: timedelta,
) -> None:
    """Insert the row of a worker that starts, with a lease of *ttl* from now."""
    session.execute(
        insert(WorkerRow).values(
            id=UUID(worker_id),
            lease_until=clock.shifted(ttl),
            started_at=clock.now(),
            host=host,
            pid=pid,
            version=version,
            queues=dict(queues),
        )
    )


def renew(
    session: Session,
    worker_id: str,
    *,
    ttl: timedelta,
    running: Sequence[tuple[str, int]],
    condition: Condition | None = None,
) -> Renewal:
    """Extend a lease that is still valid by *ttl* from now; one statement.

    :param running: the ``(job id, fence)`` pairs that this worker holds.
    :param condition: what is shown of it, and what its listener is to hear.
    """
    connection = job_connection(session)
    told = condition or Condition()
    row = dialect_of(connection).renew(
        connection,
        worker_id=worker_id,
        ttl=ttl,
        running=running,
        backends=told.backends,
        listening=told.listening,
        stuck=told.stuck,
        sign=told.sign,
    )
    if row is None:
        return Renewal(alive=False)
    return Renewal(
        alive=True,
        lost=row.lost,
        cancelled=dict(row.cancelled),
        paused=frozenset(row.paused),
        schema_version=row.schema_version,
        min_code_version=row.min_code_version,
    )


def expire_lease(session: Session, worker_id: str) -> None:
    """End a lease now, so that whatever this worker still holds is rescued at once."""
    session.execute(
        update(WorkerRow)
        .where(WorkerRow.id == UUID(worker_id))
        .values(
            lease_until=clock.shifted(-EXPIRED_FOR),
            # Where rescue takes two looks: as if the first one were long ago.
            suspect_at=clock.shifted(-EXPIRED_FOR),
        )
        .execution_options(synchronize_session=False)
    )


def reap_workers(session: Session, *, after: timedelta) -> int:
    """Delete rows of workers whose lease ended more than *after* ago; count them."""
    result = session.execute(
        delete(WorkerRow)
        .where(WorkerRow.lease_until < clock.shifted(-after))
        .execution_options(synchronize_session=False)
    )
    return cast("CursorResult[*tuple[Any, ...]]", result).rowcount
