"""The library's own tables as steps of the application's migrations."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.schema import (
    CreateIndex,
    CreateSchema,
    CreateTable,
    DropTable,
    ExecutableDDLElement,
)

from sqla_jobs.alembic import version_one, version_two
from sqla_jobs.exc import SchemaStepError
from sqla_jobs.models import SCHEMA_VERSION, Meta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from alembic.operations import Operations

STEPS: Final = {1: version_one.TABLES, 2: version_two.TABLES}
"""What each version adds."""
MIN_CODE: Final = {1: 1, 2: 1}
"""The oldest code that can work with the tables of each version."""

_META: Final = Table(
    Meta.__tablename__,
    MetaData(schema=Meta.metadata.schema),
    Column("id", SmallInteger, primary_key=True),
    Column("schema_version", Integer),
    Column("min_code_version", Integer),
)


def migrate_schema(op: Operations, *, to: int, since: int | None = None) -> None:
    """Bring the library's tables to version *to*, up or down; 0 is "no tables".

    The number stands in the revision, and each step is written out in the library: a
    revision does next year what it did when it was reviewed. Where the tables stand is
    read from the database, so nothing is done twice; SQL that is only printed
    (``alembic upgrade --sql``) begins at *since*. Runs in the migration's transaction.
    ``sqla-jobs db revision`` writes such a revision.

    :raises SchemaStepError: there is no such version, or no *since* where it is needed.
    """
    context = op.get_context()
    if context.as_sql:
        if since is None:
            raise SchemaStepError("since=None in offline mode", SCHEMA_VERSION)
    else:
        since = _version_now(op)
    for version in (to, since):
        if not 0 <= version <= SCHEMA_VERSION:
            raise SchemaStepError(str(version), SCHEMA_VERSION)
    if to == since:
        return
    if to > since:
        statements = chain.from_iterable(
            _up(STEPS[version]) for version in range(since + 1, to + 1)
        )
    else:
        statements = chain.from_iterable(
            _down(STEPS[version]) for version in range(since, to, -1)
        )
    schema = Meta.metadata.schema
    if since == 0 and schema is not None and context.dialect.name != "sqlite":
        op.execute(CreateSchema(schema, if_not_exists=True))
    for statement in statements:
        op.execute(statement)
    if to > 0:
        _note_version(op, to, first=since == 0)


def _version_now(op: Operations) -> int:
    bind = op.get_bind()
    if not inspect(bind).has_table(_META.name, schema=_META.schema):
        return 0
    version: int = bind.execute(select(_META.c.schema_version)).scalar_one()
    return version


def _up(tables: MetaData) -> Iterator[ExecutableDDLElement]:
    for table in tables.sorted_tables:
        yield CreateTable(table)
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield CreateIndex(index)


def _down(tables: MetaData) -> Iterator[ExecutableDDLElement]:
    for table in reversed(tables.sorted_tables):
        yield DropTable(table)


def _note_version(op: Operations, version: int, *, first: bool) -> None:
    values = {"schema_version": version, "min_code_version": MIN_CODE[version]}
    if first:
        op.execute(insert(_META).values(id=1, **values))
    else:
        op.execute(update(_META).values(**values))
