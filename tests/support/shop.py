"""A small business beside our tables: what the tests' transactions write."""

from __future__ import annotations

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The application's own metadata, apart from ``sqla_jobs.metadata``."""


class Order(Base):
    """A business row; *note* is unique, so that a test can make a flush fail."""

    __tablename__ = "shop_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    org_id: Mapped[int]
    note: Mapped[str | None] = mapped_column(unique=True)


class Effect(Base):
    """What a handler did: one row per thing that must happen exactly once."""

    __tablename__ = "shop_effect"
    __table_args__ = (UniqueConstraint("name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    attempt: Mapped[int] = mapped_column(default=0)
    order_id: Mapped[int | None] = mapped_column(ForeignKey("shop_order.id"))


class Visit(Base):
    """What a handler did, counted: several rows of one name are allowed."""

    __tablename__ = "shop_visit"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    attempt: Mapped[int] = mapped_column(default=0)
