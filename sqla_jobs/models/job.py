"""The job: one lean row that is the truth, its payloads, and its attempts.

Claim and settle rewrite the lean row only; payloads are rows of their own that are
written once, which keeps 13 to 33 % of the write-ahead log away.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Index,
    Integer,
    SmallInteger,
    Text,
    Uuid,
    false,
    select,
    text,
)
from sqlalchemy.orm import Mapped, column_property, mapped_column, relationship

from sqla_jobs.clock import UtcDateTime
from sqla_jobs.models.base import HOT_STORAGE, Base, Payload


class JobBody(Base):
    """What a job was given; written by the enqueue, never by claim or settle."""

    __tablename__ = "sqla_job_body"
    __table_args__ = ({"postgresql_with": HOT_STORAGE},)

    job_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    input: Mapped[Any] = mapped_column(Payload(none_as_null=False), nullable=False)
    rerun_input: Mapped[Any | None] = mapped_column(Payload(none_as_null=True))
    """The newest input of a rerun asked for while the job runs."""


class JobOutput(Base):
    """What a job returned; absent when that was ``None``."""

    __tablename__ = "sqla_job_output"
    __table_args__ = ({"postgresql_with": HOT_STORAGE},)

    job_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    fence: Mapped[int] = mapped_column(BigInteger, nullable=False)
    output: Mapped[Any] = mapped_column(Payload(none_as_null=False), nullable=False)


class Attempt(Base):
    """One ended execution of a job that did not simply succeed; append-only."""

    __tablename__ = "sqla_attempt"
    __table_args__ = ({"postgresql_with": HOT_STORAGE},)

    job_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    fence: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    number: Mapped[int] = mapped_column(Integer, nullable=False)
    worker_id: Mapped[UUID | None] = mapped_column(Uuid)
    worker: Mapped[str | None] = mapped_column(Text)
    """Host and process of the worker, for people."""
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    outcome: Mapped[str] = mapped_column(Text, nullable=False)
    error_type: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    """Bounded text (8 KiB, head and tail), never with statement parameters."""


class Job(Base):
    """One job; its identity is ``(tenant, name, key)`` for as long as the row lives.

    ``fence`` grows at every change of ownership (claim, rescue, operator's retry,
    rerun) and never goes back; every write on behalf of an attempt matches
    ``(id, fence, worker_id)``.
    """

    __tablename__ = "sqla_job"

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    tenant: Mapped[str] = mapped_column(Text, nullable=False)
    name: Mapped[str] = mapped_column(Text, nullable=False)
    queue: Mapped[str] = mapped_column(Text, nullable=False)
    key: Mapped[str] = mapped_column(Text, nullable=False)
    state: Mapped[str] = mapped_column(Text, nullable=False)
    priority: Mapped[int] = mapped_column(SmallInteger, nullable=False)
    run_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    lane: Mapped[str | None] = mapped_column(Text)
    """Digest of ``cap_keys``; null for a job without caps."""
    cap_keys: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    attempt: Mapped[int] = mapped_column(
        Integer, nullable=False, server_default=text("0")
    )
    max_attempts: Mapped[int] = mapped_column(Integer, nullable=False)
    interruptions: Mapped[int] = mapped_column(
        SmallInteger, nullable=False, server_default=text("0")
    )
    """Attempts that a stopping worker gave back uncounted; bounded."""
    fence: Mapped[int] = mapped_column(
        BigInteger, nullable=False, server_default=text("0")
    )
    worker_id: Mapped[UUID | None] = mapped_column(Uuid)
    attempted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    deadline_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    cancel_requested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    cancel_reason: Mapped[str | None] = mapped_column(Text)
    rerun: Mapped[bool] = mapped_column(nullable=False, server_default=false())
    """One more run was asked for while this one runs."""
    rerun_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    traceparent: Mapped[str | None] = mapped_column(Text)
    enqueued_by: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    if TYPE_CHECKING:
        input: Mapped[Any]
        output: Mapped[Any]
    attempts: Mapped[list[Attempt]] = relationship(
        Attempt,
        primaryjoin=lambda: Job.id == Attempt.job_id,
        foreign_keys=Attempt.job_id,
        order_by=Attempt.fence,
        viewonly=True,
    )

    __table_args__ = (
        CheckConstraint(
            "state in ('ready', 'running', 'waiting', 'succeeded', 'dead', "
            "'cancelled')",
            name="state",
        ),
        CheckConstraint(
            "(state = 'running') = (worker_id is not null)",
            name="owner",
        ),
        CheckConstraint(
            "(finished_at is not null) = (state in ('succeeded', 'dead', 'cancelled'))",
            name="finish",
        ),
        Index("sqla_job_identity", "tenant", "name", "key", unique=True),
        *(
            Index(name, *columns, postgresql_where=text(when), sqlite_where=text(when))
            for name, columns, when in (
                (
                    "sqla_job_ready",
                    ("queue", "priority", "run_at", "id"),
                    "state in ('ready', 'waiting') and lane is null",
                ),
                (
                    "sqla_job_lane",
                    ("queue", "lane", "priority", "run_at", "id"),
                    "state in ('ready', 'waiting') and lane is not null",
                ),
                ("sqla_job_owned", ("worker_id",), "state = 'running'"),
                ("sqla_job_finished", ("finished_at", "id"), "finished_at is not null"),
                ("sqla_job_dead", ("tenant", "finished_at"), "state = 'dead'"),
            )
        ),
        # Versions of a row stay on its page: less WAL; claim and settle are never HOT.
        {"postgresql_with": {"fillfactor": 85, **HOT_STORAGE}},
    )


# Payloads read through the job, on demand: a list of jobs never loads them.
Job.input = column_property(
    select(JobBody.input).where(JobBody.job_id == Job.id).scalar_subquery(),
    deferred=True,
)
Job.output = column_property(
    select(JobOutput.output).where(JobOutput.job_id == Job.id).scalar_subquery(),
    deferred=True,
)
