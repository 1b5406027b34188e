"""The application's database: one engine, one session factory."""

import os

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import sessionmaker

import sqla_jobs
from examples.weather.models import Base
from sqla_jobs import JobSession

URL = os.environ.get("WEATHER_DATABASE_URL", "postgresql+psycopg:///weather")

engine = create_engine(URL)
Session = sessionmaker(engine, class_=JobSession)


def create_schema(engine: Engine) -> None:
    """Create the application's tables and the library's, where they are missing.

    An application with a history of revisions does this with Alembic instead.
    """
    Base.metadata.create_all(engine)
    sqla_jobs.metadata.create_all(engine)
