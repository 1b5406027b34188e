"""``sqla-jobs db ddl``: what it prints makes exactly our tables."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from sqla_jobs.models import SCHEMA_VERSION, metadata
from sqla_jobs.queue.schema import check_schema


def test_the_printed_sql_makes_the_tables_and_their_version(run, empty_url):
    said = run("db", "ddl")
    assert said.code == 0
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(said.out)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []
    with Session(engine) as session:
        check_schema(session)
    engine.dispose()


def test_the_printed_sql_makes_them_in_sqlite_as_well(run, tmp_path):
    said = run("db", "ddl", "--dialect", "sqlite")
    assert said.code == 0
    file = tmp_path / "shop.db"
    connection = sqlite3.connect(file)
    connection.executescript(said.out)
    connection.close()
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []
    with Session(engine) as session:
        check_schema(session)
    engine.dispose()


def test_the_schema_setting_is_created_and_used(empty_url):
    env = {**os.environ, "SQLA_JOBS_SCHEMA": "queues"}
    command = [sys.executable, "-m", "sqla_jobs", "db", "ddl"]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(said.stdout)
        found = text("SELECT count(*) FROM pg_tables WHERE schemaname = 'queues'")
        assert connection.scalar(found) == len(metadata.tables)
        version = text("SELECT schema_version FROM queues.sqla_meta")
        assert connection.scalar(version) == SCHEMA_VERSION
    engine.dispose()


def test_it_connects_to_nothing(run, monkeypatch):
    monkeypatch.setenv("SQLA_JOBS_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    assert run("db", "ddl").code == 0
