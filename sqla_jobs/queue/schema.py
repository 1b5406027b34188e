"""Whether these tables and this code fit together; asked once, before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from sqla_jobs.dialects.base import job_connection
from sqla_jobs.exc import SchemaVersionError
from sqla_jobs.models import CODE_VERSION, MIN_SCHEMA_VERSION, Meta

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

CREATE: Final = (
    "create them with sqla_jobs.metadata.create_all(engine), or run what "
    "'sqla-jobs db ddl' prints"
)


def check_schema(session: Session) -> None:
    """Raise :exc:`.SchemaVersionError` when this code cannot use these tables.

    Refused are missing tables, a schema older than the oldest this code can use, and
    one that was declared too new for this code; everything between works, so that old
    and new workers run side by side while a release rolls out. Emits one SELECT. Where
    the tables are missing PostgreSQL has aborted the caller's transaction.
    """
    try:
        row = (
            job_connection(session)
            .execute(select(Meta.schema_version, Meta.min_code_version))
            .one_or_none()
        )
    except DBAPIError as error:
        if not _is_missing_table(error):
            raise
        raise SchemaVersionError(
            "The tables of sqla_jobs are not in this database",
            "this code needs them",
            CREATE,
        ) from error
    if row is None:
        raise SchemaVersionError(
            f"The table {Meta.__tablename__} holds no version",
            "this code must know which schema it meets",
            CREATE,
        )
    if row.schema_version < MIN_SCHEMA_VERSION:
        raise SchemaVersionError(
            f"The tables of sqla_jobs are at version {row.schema_version}",
            f"this code needs version {MIN_SCHEMA_VERSION} or newer",
            "migrate the tables before this release starts",
        )
    if row.min_code_version > CODE_VERSION:
        raise SchemaVersionError(
            f"The tables of sqla_jobs (version {row.schema_version}) need code version "
            f"{row.min_code_version}",
            f"this code is version {CODE_VERSION}",
            "upgrade the package sqla-jobs here",
        )


def _is_missing_table(error: DBAPIError) -> bool:
    # 42P01 is also what a missing schema gives; SQLite has no codes, only this text.
    state = getattr(error.orig, "sqlstate", None)
    return state == "42P01" or "no such table" in str(error.orig)
