"""The application's migrations: what there is, and what of it the database has.

Alembic's folder is read as files; its ``env.py`` is never run: it configures logging,
opens connections of its own, and is not made to be run twice in a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Column, MetaData, String, Table, inspect, select

from sqla_jobs.exc import MigrationsUnreadableError
from sqla_jobs.settings import pyproject_section

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

DEFAULT_TABLE: Final = "alembic_version"
INI: Final = "alembic.ini"


@attrs.frozen
class MigrationEnvironment:
    """A folder of migrations, and the table that says which of them are applied."""

    script: ScriptDirectory
    version_table: str = DEFAULT_TABLE
    version_table_schema: str | None = None


@attrs.frozen
class RevisionState:
    """What the database has of the migrations."""

    current: frozenset[str]
    """The revisions that the version table names."""
    pending: Sequence[str]
    """Those that are not applied, in the order in which they can be."""
    unknown: frozenset[str]
    """Applied ones that the folder does not hold: the database is ahead of it."""
    version_table_missing: bool


def find_environment(path: str | Path | None = None) -> MigrationEnvironment:
    """Return the environment at *path*: an ``alembic.ini``, or the folder itself.

    Without a path ``alembic.ini`` in the working directory. The version table's name
    and schema are the settings ``version-table`` and ``version-table-schema`` of
    ``[tool.sqla-jobs]`` in pyproject.toml.

    :raises MigrationsUnreadableError: nothing of Alembic is there.
    """
    place = Path(path or INI)
    if place.is_dir():
        config = Config()
        config.set_main_option("script_location", str(place).replace("%", "%%"))
    elif place.is_file():
        config = Config(str(place))
    else:
        raise MigrationsUnreadableError(str(place), "there is no such file")
    try:
        script = ScriptDirectory.from_config(config)
        script.get_heads()
    except Exception as error:
        # A migration that cannot be imported raises whatever it raises.
        reason = f"{type(error).__name__}: {error}"
        raise MigrationsUnreadableError(str(place), reason) from error
    section = pyproject_section()
    table, schema = section.get("version-table"), section.get("version-table-schema")
    return MigrationEnvironment(
        script,
        DEFAULT_TABLE if table is None else str(table),
        None if schema is None else str(schema),
    )


def read_state(session: Session, env: MigrationEnvironment) -> RevisionState:
    """Compare the version table with the folder; one look and one SELECT."""
    table = Table(
        env.version_table,
        MetaData(),
        Column("version_num", String),
        schema=env.version_table_schema,
    )
    there = inspect(session.connection()).has_table(
        env.version_table, schema=env.version_table_schema
    )
    current = set(session.scalars(select(table.c.version_num))) if there else set()
    known = {name for name in current if _is_known(env.script, name)}
    pending = [
        script.revision
        # Not by comparing heads: a head may be reached by another branch's depends_on.
        for script in env.script.revision_map.iterate_revisions(
            "heads", tuple(known) or "base", implicit_base=True
        )
    ]
    return RevisionState(
        frozenset(current),
        tuple(reversed(pending)),
        frozenset(current - known),
        version_table_missing=not there,
    )


def _is_known(script: ScriptDirectory, name: str) -> bool:
    """Tell whether *name* is the full id of a revision; a prefix is none."""
    try:
        found = script.get_revision(name)
    except CommandError:
        return False
    return found.revision == name
