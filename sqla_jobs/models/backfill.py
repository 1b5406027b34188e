"""Backfills: where each stands, what was done to it, and the rows that failed."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, BigInteger, Double, Index, Integer, Text, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from sqla_jobs.clock import UtcDateTime
from sqla_jobs.models.base import BEATING_STORAGE, Base


class Backfill(Base):
    """One backfill: the place reached is committed together with the rows changed.

    Every write of a run matches ``(name, fence, holder)``; taking over raises the fence.
    """

    __tablename__ = "sqla_backfill"
    __table_args__ = ({"postgresql_with": BEATING_STORAGE},)

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    after: Mapped[str | None] = mapped_column(Text)
    table_name: Mapped[str | None] = mapped_column(Text)
    status: Mapped[str] = mapped_column(Text, nullable=False)
    """pending, running, paused, failed, cancelled, done or skipped."""
    checksum: Mapped[str | None] = mapped_column(Text)
    """Of the declared facts that it was first run with."""
    remain_sql: Mapped[str | None] = mapped_column(Text)
    """Finds a row that is still to do; a migration asks it where no code is loaded."""
    cursor: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    """The key of the last row that was seen; NULL before the first one of a pass."""
    pass_number: Mapped[int] = mapped_column(Integer, nullable=False)
    batch_size: Mapped[int | None] = mapped_column(Integer)
    """Set while it is there; NULL: as declared."""
    rate: Mapped[float | None] = mapped_column(Double)
    """Rows per second; NULL: as declared."""
    rows_done: Mapped[int] = mapped_column(BigInteger, nullable=False)
    rows_estimate: Mapped[int | None] = mapped_column(BigInteger)
    failures: Mapped[int] = mapped_column(Integer, nullable=False)
    """Rows that failed and were neither retried nor accepted."""
    fence: Mapped[int] = mapped_column(BigInteger, nullable=False)
    holder: Mapped[UUID | None] = mapped_column(Uuid)
    holder_name: Mapped[str | None] = mapped_column(Text)
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    requested: Mapped[str | None] = mapped_column(Text)
    """pause or cancel: what the run shall do after its batch."""
    reason: Mapped[str | None] = mapped_column(Text)
    error_type: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    declared_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    beat_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class BackfillEvent(Base):
    """Something that was done to a backfill, and who did it."""

    __tablename__ = "sqla_backfill_event"
    __table_args__ = (Index("sqla_backfill_event_backfill", "backfill", "at"),)

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    backfill: Mapped[str] = mapped_column(Text, nullable=False)
    at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    kind: Mapped[str] = mapped_column(Text, nullable=False)
    by: Mapped[str | None] = mapped_column(Text)
    detail: Mapped[str | None] = mapped_column(Text)


class BackfillFailure(Base):
    """A row on which the function failed."""

    __tablename__ = "sqla_backfill_failure"

    backfill: Mapped[str] = mapped_column(Text, primary_key=True)
    key_text: Mapped[str] = mapped_column(Text, primary_key=True)
    """The row's key as JSON."""
    error_type: Mapped[str] = mapped_column(Text, nullable=False)
    error: Mapped[str] = mapped_column(Text, nullable=False)
    at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    state: Mapped[str] = mapped_column(Text, nullable=False)
    """open, or accepted."""
