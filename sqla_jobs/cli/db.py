"""``sqla-jobs db``: the tables as SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
from sqlalchemy import ClauseElement, create_mock_engine
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateSchema

from sqla_jobs.cli.command import Verbs
from sqla_jobs.models import metadata

if TYPE_CHECKING:
    from sqlalchemy import Dialect

DIALECTS: Final[dict[str, type[Dialect]]] = {
    "postgresql": postgresql.dialect,
    "sqlite": sqlite.dialect,
}


@click.group(cls=Verbs)
def db() -> None:
    """Create the tables."""


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
