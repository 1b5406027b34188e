"""Folders of migrations, written by tests."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, text

REVISION = """\
revision = {name!r}
down_revision = {down!r}
depends_on = {depends!r}


def upgrade():
    pass
"""


def write_folder(folder: Path, **revisions: tuple[object, object]) -> Path:
    """Write each revision with its ``down_revision`` and ``depends_on``."""
    (folder / "versions").mkdir(parents=True)
    # What must never be run.
    (folder / "env.py").write_text("raise SystemExit('env.py was run')\n")
    (folder / "script.py.mako").write_text("")
    for name, (down, depends) in revisions.items():
        source = REVISION.format(name=name, down=down, depends=depends)
        (folder / "versions" / f"{name}.py").write_text(source)
    return folder


def stamp(engine: Engine, *revisions: str, table: str = "alembic_version") -> None:
    """Write the version table."""
    with engine.begin() as connection:
        connection.execute(
            text(f"CREATE TABLE IF NOT EXISTS {table} (version_num VARCHAR(32))")
        )
        connection.execute(text(f"DELETE FROM {table}"))
        for revision in revisions:
            insert = text(f"INSERT INTO {table} VALUES (:revision)")
            connection.execute(insert, {"revision": revision})
