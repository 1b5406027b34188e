"""The business of the chaos: what its transactions write beside the library's tables."""

from __future__ import annotations

import os
from uuid import UUID

from sqlalchemy import URL, BigInteger, Engine, Uuid, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqla_jobs import JobSession

ACCOUNTS = 5
WORKER, PRODUCER, STEWARD = "chaos-worker", "chaos-producer", "chaos-steward"


class Base(DeclarativeBase):
    """The chaos's own metadata."""


class Order(Base):
    """Written with the job of the same key, in one transaction: both or neither."""

    __tablename__ = "chaos_order"

    key: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]


class Request(Base):
    """Written with an enqueue that may meet an existing job."""

    __tablename__ = "chaos_request"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    key: Mapped[str]
    mode: Mapped[str]


class Effect(Base):
    """What a handler did. Nothing here is unique: what happened twice is there twice."""

    __tablename__ = "chaos_effect"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    job_id: Mapped[UUID] = mapped_column(Uuid, index=True)
    name: Mapped[str]
    part: Mapped[str]
    """``final``: committed with the completion; ``early``: by the handler itself."""
    attempt: Mapped[int]
    fence: Mapped[int] = mapped_column(BigInteger)


class Account(Base):
    """A row that many attempts update: its balance counts their successes."""

    __tablename__ = "chaos_account"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    balance: Mapped[int]


def url_of_environment() -> URL | str:
    """Return the database that the parent has chosen."""
    return os.environ["SQLA_JOBS_DATABASE_URL"]


def application(
    name: str, pool_size: int = 5
) -> tuple[Engine, sessionmaker[JobSession]]:
    """Return engine and session factory as an application has them.

    *name* is what the server calls its sessions, and those that are made like them.
    """
    engine = create_engine(
        url_of_environment(),
        pool_size=pool_size,
        connect_args={"application_name": name},
    )
    return engine, sessionmaker(engine, class_=JobSession)
