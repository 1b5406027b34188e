"""The application's tables: plain SQLAlchemy, nothing of the library's."""

import datetime as dt
from decimal import Decimal

from sqlalchemy import ForeignKey, Numeric, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """The application's own metadata."""


class Station(Base):
    """A place where the temperature is measured."""

    __tablename__ = "weather_station"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class Reading(Base):
    """One measurement, at the station's own local time."""

    __tablename__ = "weather_reading"

    station_id: Mapped[int] = mapped_column(ForeignKey(Station.id), primary_key=True)
    taken_at: Mapped[dt.datetime] = mapped_column(primary_key=True)
    fahrenheit: Mapped[Decimal] = mapped_column(Numeric(4, 1))


class DaySummary(Base):
    """What a job made of one day's readings: there can be only one per day."""

    __tablename__ = "weather_day_summary"
    __table_args__ = (UniqueConstraint("station_id", "day"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    station_id: Mapped[int] = mapped_column(ForeignKey(Station.id))
    day: Mapped[dt.date]
    readings: Mapped[int]
    low: Mapped[Decimal] = mapped_column(Numeric(4, 1))
    high: Mapped[Decimal] = mapped_column(Numeric(4, 1))
    mean: Mapped[Decimal] = mapped_column(Numeric(6, 3))

    station: Mapped[Station] = relationship()
