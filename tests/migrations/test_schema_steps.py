"""Our tables as steps of the application's migrations: the same as create_all makes."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from sqla_jobs.alembic import migrate_schema
from sqla_jobs.exc import SchemaStepError
from sqla_jobs.models import SCHEMA_VERSION, metadata
from sqla_jobs.queue.schema import check_schema

pytestmark = pytest.mark.conformance

CATALOGUE = {
    "postgresql": """
        SELECT c.relname || ' ' || a.attname,
               format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull
               || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
          LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
         WHERE c.relname LIKE 'sqla_%' AND c.relkind = 'r' AND a.attnum > 0
        UNION ALL
        SELECT 'index ' || indexname, indexdef FROM pg_indexes
         WHERE tablename LIKE 'sqla_%'
        UNION ALL
        SELECT 'constraint ' || conname, pg_get_constraintdef(oid) FROM pg_constraint
         WHERE conrelid::regclass::text LIKE '%sqla_%' AND contype <> 'n'
        UNION ALL
        SELECT 'storage ' || relname, coalesce(array_to_string(reloptions, ' '), '')
          FROM pg_class WHERE relname LIKE 'sqla_%' AND relkind = 'r'
        ORDER BY 1""",
    "sqlite": """
        SELECT 'column ' || m.name || ' ' || c.name,
               c.type || c."notnull" || c.pk || coalesce(c.dflt_value, '')
          FROM sqlite_master m, pragma_table_info(m.name) c
         WHERE m.type = 'table' AND m.name LIKE 'sqla_%'
        UNION ALL
        SELECT 'index ' || name, sql FROM sqlite_master
         WHERE type = 'index' AND name LIKE 'sqla_%'
        ORDER BY 1""",
}


def catalogue(engine):
    with engine.connect() as connection:
        rows = connection.execute(text(CATALOGUE[engine.dialect.name]))
        return {tuple(row) for row in rows}


@contextmanager
def operations(engine):
    with engine.begin() as connection:
        yield Operations(MigrationContext.configure(connection))


@pytest.fixture
def empty(empty_url):
    engine = create_engine(empty_url)
    yield engine
    engine.dispose()


def test_the_steps_make_what_create_all_makes(engine, empty):
    with operations(empty) as op:
        migrate_schema(op, to=SCHEMA_VERSION)
    made = catalogue(empty)
    assert made == catalogue(engine)
    assert len(made) > 80
    with Session(empty) as session:
        check_schema(session)


def test_each_step_goes_up_and_down_and_leaves_nothing(empty):
    with operations(empty) as op:
        migrate_schema(op, to=1)
    first = catalogue(empty)
    with Session(empty) as session:
        check_schema(session)  # New code works with jobs on the older tables.
    with operations(empty) as op:
        migrate_schema(op, to=2)
    assert catalogue(empty) > first
    with operations(empty) as op:
        migrate_schema(op, to=1)
    assert catalogue(empty) == first
    with operations(empty) as op:
        migrate_schema(op, to=0)
    assert catalogue(empty) == set()


def test_a_step_that_was_done_is_not_done_again(empty):
    metadata.create_all(empty)
    before = catalogue(empty)
    with operations(empty) as op:
        migrate_schema(op, to=SCHEMA_VERSION, since=0)
    assert catalogue(empty) == before


@pytest.mark.parametrize("version", [-1, SCHEMA_VERSION + 1])
def test_an_unknown_version_is_refused_and_changes_nothing(empty, version):
    with operations(empty) as op, pytest.raises(SchemaStepError, match="0 .none. to"):
        migrate_schema(op, to=version)
    assert catalogue(empty) == set()
