"""The running system: workers with their leases, paused queues, the schema version."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sqlalchemy import JSON, Boolean, Integer, SmallInteger, Text, Uuid, event, insert
from sqlalchemy.orm import Mapped, mapped_column

from sqla_jobs.clock import UtcDateTime
from sqla_jobs.models.base import BEATING_STORAGE, Base

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

SCHEMA_VERSION: Final = 2
"""The schema that this code creates; `sqla_jobs.alembic.migrate_schema` has its steps."""
MIN_SCHEMA_VERSION: Final = 1
"""The oldest schema that this code can use; backfills need version 2."""
CODE_VERSION: Final = 1
"""What a schema's ``min_code_version`` is compared with."""


class WorkerRow(Base):
    """One start of a worker process; its lease is the lease of all its attempts.

    The id is random per start, never a host name or process id: those come again.
    """

    __tablename__ = "sqla_worker"
    __table_args__ = ({"postgresql_with": BEATING_STORAGE},)

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    lease_until: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    suspect_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When a rescuer first saw the lease expired (databases with one writer)."""
    host: Mapped[str] = mapped_column(Text, nullable=False)
    pid: Mapped[int] = mapped_column(Integer, nullable=False)
    version: Mapped[str] = mapped_column(Text, nullable=False)
    queues: Mapped[dict[str, int]] = mapped_column(JSON, nullable=False)
    backends: Mapped[list[int] | None] = mapped_column(JSON(none_as_null=True))
    """Server processes that serve the handlers' sessions: ended by whoever rescues
    this worker's jobs, since a frozen attempt's row locks would block the retry."""
    listening: Mapped[bool | None] = mapped_column(Boolean)
    """Whether its notifications were known to arrive at the last beat; NULL where
    there are none to hear, or before the first beat."""
    stuck: Mapped[int | None] = mapped_column(Integer)
    """Abandoned attempts whose handlers had not come back at the last beat."""


class QueueRow(Base):
    """A queue that was paused at least once."""

    __tablename__ = "sqla_queue"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    paused_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Meta(Base):
    """The one row that tells which schema this is and which code may use it."""

    __tablename__ = "sqla_meta"

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    schema_version: Mapped[int] = mapped_column(Integer, nullable=False)
    min_code_version: Mapped[int] = mapped_column(Integer, nullable=False)


@event.listens_for(Meta.__table__, "after_create")
def _write_version(
    target: Table,
    connection: Connection,
    **kw: Any,  # noqa: ANN401, ARG001 - the signature is SQLAlchemy's
) -> None:
    connection.execute(
        insert(target).values(
            id=1, schema_version=SCHEMA_VERSION, min_code_version=CODE_VERSION
        )
    )
