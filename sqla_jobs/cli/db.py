"""``sqla-jobs db``: the tables as SQL, as a revision, and whether they are right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from alembic.util import CommandError, rev_id
from sqlalchemy import ClauseElement, create_mock_engine
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateSchema

from sqla_jobs.alembic.drift import find_drift
from sqla_jobs.cli import json
from sqla_jobs.cli.backfill_run import alembic_option
from sqla_jobs.cli.command import REFUSED, Verbs, json_option, place_options
from sqla_jobs.dialects import job_connection
from sqla_jobs.exc import MigrationsUnreadableError
from sqla_jobs.models import SCHEMA_VERSION, metadata
from sqla_jobs.revisions import find_environment

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory
    from sqlalchemy import Dialect

    from sqla_jobs.cli.command import Place

DIALECTS: Final[dict[str, type[Dialect]]] = {
    "postgresql": postgresql.dialect,
    "sqlite": sqlite.dialect,
}


@click.group(cls=Verbs)
def db() -> None:
    """Create the tables, change them, and look whether they are right."""


@db.command()
@click.option(
    "--dialect",
    type=click.Choice(sorted(DIALECTS)),
    default="postgresql",
    show_default=True,
    help="Which database the SQL is for.",
)
def ddl(dialect: str) -> None:
    """Print the SQL that creates the tables; it connects to nothing.

    The same as sqla_jobs.metadata.create_all(engine), to be reviewed and run by hand:
    sqla-jobs db ddl | psql "$URL" -v ON_ERROR_STOP=1 -1
    """
    chosen = DIALECTS[dialect]()

    def write(statement: ClauseElement, *args: Any, **options: Any) -> None:  # noqa: ANN401, ARG001 - SQLAlchemy's signature
        sql = statement.compile(dialect=chosen, compile_kwargs={"literal_binds": True})
        click.echo(f"{str(sql).strip()};\n")

    if metadata.schema is not None:
        write(CreateSchema(metadata.schema, if_not_exists=True))
    engine = create_mock_engine(f"{dialect}://", write)
    metadata.create_all(engine, checkfirst=False)


_STEP: Final = re.compile(r"migrate_schema\(op, to=(\d+)")


@db.command()
@click.option(
    "--to",
    type=click.IntRange(0, SCHEMA_VERSION),
    default=SCHEMA_VERSION,
    show_default=True,
    help="The version of the tables that it goes up to.",
)
@click.option("--head", default="head", help="The revision that it comes after.")
@alembic_option
def revision(*, to: int, head: str, alembic: str | None) -> None:
    """Write a revision that brings the library's tables into your migrations.

    It is a file like any other: review it, commit it, and run "alembic upgrade head".
    """
    script = find_environment(alembic).script
    since = _newest_step(script)
    if since >= to:
        click.echo(f"The migrations have version {since} of the tables: nothing to do.")
        return
    try:
        written = script.generate_revision(
            rev_id(),
            f"sqla_jobs tables {to}",
            head=head,
            imports="from sqla_jobs.alembic import migrate_schema",
            upgrades=f"migrate_schema(op, to={to}, since={since})",
            downgrades=f"migrate_schema(op, to={since}, since={to})",
        )
    except CommandError as error:
        raise MigrationsUnreadableError(script.dir, str(error)) from error
    assert written is not None  # noqa: S101 - only a hook of Alembic's own gives None
    click.echo(written.path)


def _newest_step(script: ScriptDirectory) -> int:
    """Return the version of the tables that the migrations go up to."""
    steps = [0]
    for each in script.walk_revisions():
        source = Path(each.path).read_text("utf-8")
        steps += [int(number) for number in _STEP.findall(source)]
    return max(steps)


@db.command()
@place_options
@json_option
@click.pass_context
def check(ctx: click.Context, *, place: Place, as_json: bool) -> None:
    """Say whether the tables are what this package expects; exit code 1 if not.

    Also what autogenerate does not see: predicates of indexes, storage parameters.
    """
    with place.look() as session:
        drift = find_drift(job_connection(session))
    if as_json:
        json.write({"schema_version": SCHEMA_VERSION, "drift": drift})
    elif drift:
        for line in drift:
            click.echo(line)
    else:
        click.echo(f"The tables are as version {SCHEMA_VERSION} has them.")
    if drift:
        ctx.exit(REFUSED)
