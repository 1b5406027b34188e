"""Tables that backfills change; made in the test's own database."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Uuid
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Price(Base):
    __tablename__ = "price"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    amount: Mapped[int]
    cents: Mapped[int | None]
    changes: Mapped[int] = mapped_column(default=0)


class Line(Base):
    """Keyed by two columns."""

    __tablename__ = "line"

    basket: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    cents: Mapped[int | None]


class Token(Base):
    """Keyed at random: rows land behind the place reached."""

    __tablename__ = "token"

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    seen: Mapped[int | None]
