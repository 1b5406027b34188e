"""Whether tables and code fit: refused with what was found and what to do about it."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, delete, text, update
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from sqla_jobs.exc import SchemaVersionError
from sqla_jobs.models import CODE_VERSION, MIN_SCHEMA_VERSION, SCHEMA_VERSION, Meta
from sqla_jobs.queue.schema import check_schema

pytestmark = pytest.mark.conformance


@pytest.fixture
def session(engine):
    with Session(engine) as session:
        yield session


def test_tables_made_by_this_code_fit(session):
    check_schema(session)


def test_missing_tables_name_the_command_that_makes_them(empty_url):
    engine = create_engine(empty_url)
    with Session(engine) as session, pytest.raises(SchemaVersionError) as refused:
        check_schema(session)
    assert "sqla-jobs db ddl" in refused.value.remedy
    assert "create_all" in refused.value.remedy
    engine.dispose()


def test_a_newer_schema_is_used_as_long_as_it_admits_this_code(session):
    """Old workers go on while a release rolls out."""
    session.execute(update(Meta).values(schema_version=SCHEMA_VERSION + 7))
    check_schema(session)


def test_a_schema_that_needs_newer_code_is_refused(session):
    session.execute(update(Meta).values(min_code_version=CODE_VERSION + 1))
    with pytest.raises(SchemaVersionError) as refused:
        check_schema(session)
    assert str(CODE_VERSION + 1) in refused.value.found
    assert str(CODE_VERSION) in refused.value.needed


def test_a_schema_older_than_this_code_can_use_is_refused(session):
    session.execute(update(Meta).values(schema_version=MIN_SCHEMA_VERSION - 1))
    with pytest.raises(SchemaVersionError) as refused:
        check_schema(session)
    assert str(MIN_SCHEMA_VERSION - 1) in refused.value.found
    assert str(MIN_SCHEMA_VERSION) in refused.value.needed


def test_tables_without_a_version_are_refused(session):
    session.execute(delete(Meta))
    with pytest.raises(SchemaVersionError, match="no version"):
        check_schema(session)


@pytest.mark.needs("server")
def test_another_error_is_not_taken_for_missing_tables(session):
    """A role that may not read the table needs a grant, not new tables."""
    session.execute(text("CREATE ROLE sqla_jobs_nobody"))
    session.execute(text("SET LOCAL ROLE sqla_jobs_nobody"))
    with pytest.raises(ProgrammingError, match="permission denied"):
        check_schema(session)
