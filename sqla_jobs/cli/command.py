"""What all verbs share: the options that name a database, and refusals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import attrs
import click
from click.core import ParameterSource
from sqlalchemy.exc import DBAPIError, OperationalError

from sqla_jobs.cli import json, load
from sqla_jobs.exc import DatabaseUnavailableError, DeclarationError, JobsError
from sqla_jobs.queue.schema import check_schema
from sqla_jobs.session import JobSession
from sqla_jobs.settings import pyproject_section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from sqla_jobs.declare.registry import Jobs

F = TypeVar("F", bound=Callable[..., Any])

REFUSED: Final = 1


class Refused(click.ClickException):
    """A refusal: its sentence on stderr, exit code 1, no traceback."""

    exit_code = REFUSED

    def __init__(self, message: str, code: str, *, as_json: bool = False) -> None:
        """Keep the *message* and its *code*; *as_json* prints both on stdout, too."""
        super().__init__(message)
        self.code = code
        self.as_json = as_json

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the refusal."""
        if self.as_json:
            json.write({"error": {"code": self.code, "message": self.message}})
        click.echo(f"Refused: {self.message}", file=file, err=file is None)


class Verb(click.Command):
    """A command whose library errors are refusals."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """Run the command."""
        with _refusals(ctx):
            return super().invoke(ctx)


class Verbs(click.Group):
    """A group of such commands."""

    command_class = Verb
    group_class = type

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """Run the group's own function and the verb."""
        with _refusals(ctx):
            return super().invoke(ctx)


@contextmanager
def _refusals(ctx: click.Context) -> Iterator[None]:
    try:
        yield
    except DeclarationError as error:
        # Wrong whatever the database holds: an option's value.
        raise click.UsageError(str(error), ctx) from error
    except JobsError as error:
        raise _refused(error, ctx) from error
    except OperationalError as error:
        unavailable = DatabaseUnavailableError("The database", first_line(error))
        raise _refused(unavailable, ctx) from error
    except DBAPIError as error:
        message = f"The database refused a statement: {first_line(error)}"
        as_json = bool(ctx.params.get("as_json"))
        raise Refused(message, "database", as_json=as_json) from error


def _refused(error: JobsError, ctx: click.Context) -> Refused:
    as_json = bool(ctx.params.get("as_json"))
    return Refused(str(error), error.code, as_json=as_json)


def first_line(error: DBAPIError) -> str:
    """Return what the database said, on one line."""
    # The driver's own text: SQLAlchemy's adds the statement, which may hold inputs.
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__


# --- options -------------------------------------------------------------------------


def _from_file(name: str) -> Callable[[], object]:
    return lambda: pyproject_section().get(name)


def _sessions_from_file() -> Sequence[str]:
    given = pyproject_section().get("session") or ()
    return (given,) if isinstance(given, str) else tuple(map(str, _listed(given)))


def _listed(given: object) -> Sequence[object]:
    if isinstance(given, list | tuple):
        return given
    raise click.UsageError("[tool.sqla-jobs] session is no string and no list of them.")


@attrs.frozen
class Place:
    """Which application and which database, as the options say."""

    app: str | None
    sessions: Sequence[str]
    url: str | None
    url_is_nearer: bool
    """The URL was given at least as near to the user as the factory."""

    def engine(self) -> Engine:
        """Return an engine of our own on it, or raise a usage error."""
        if self.url and (not self.sessions or self.url_is_nearer):
            return load.engine_at(self.url)
        if self.sessions:
            return load.engine_behind(self.sessions[0])
        raise click.UsageError(
            "Which database? Give --session MODULE:ATTRIBUTE or --database-url URL, or"
            " set SQLA_JOBS_SESSION or SQLA_JOBS_DATABASE_URL."
        )

    def jobs(self) -> Jobs | None:
        """Import and return the registry that ``--app`` names, if it names one."""
        return load.jobs_at(self.app) if self.app else None

    @contextmanager
    def open(self) -> Iterator[JobSession]:
        """Open a session on it, once its tables were found to fit this code.

        What the block writes is committed when it ends without an error.
        """
        with self._session(self.engine()) as session:
            yield session
            session.commit()

    @contextmanager
    def look(self) -> Iterator[JobSession]:
        """Open a session that only reads: each statement by itself, no transaction.

        So nobody waits for whoever looks, and on SQLite a look does not take the right
        to write.
        """
        engine = self.engine()
        with self._session(engine.execution_options(isolation_level="AUTOCOMMIT")) as s:
            yield s

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[JobSession]:
        try:
            with JobSession(engine) as session:
                check_schema(session)
                # The caller's transaction begins with what it does: on SQLite this one
                # holds the right to write.
                session.rollback()
                yield session
        finally:
            engine.dispose()


def place_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add ``--app``, ``--session`` and ``--database-url``, given on as ``place``.

    Every verb takes them all, so that one set of options fits the whole command line;
    what a verb does not need is not imported.
    """

    @functools.wraps(command)
    def placed(
        *args: object,
        app: str | None,
        sessions: Sequence[str],
        database_url: str | None,
        **options: object,
    ) -> object:
        nearer = _is_nearer("database_url", "sessions")
        return command(
            *args, place=Place(app, sessions, database_url, nearer), **options
        )

    app = click.option(
        "--app",
        metavar="MODULE:ATTRIBUTE",
        envvar="SQLA_JOBS_APP",
        show_envvar=True,
        default=_from_file("app"),
        help="The application's Jobs registry, such as shop.jobs:jobs.",
    )
    session = click.option(
        "--session",
        "sessions",
        metavar="MODULE:ATTRIBUTE",
        multiple=True,
        envvar="SQLA_JOBS_SESSION",
        show_envvar=True,
        default=_sessions_from_file,
        help="A session factory, such as shop.db:Session; twice for a sync and an"
        " async one.",
    )
    url = click.option(
        "--database-url",
        metavar="URL",
        envvar="SQLA_JOBS_DATABASE_URL",
        show_envvar=True,
        help="The database, where no session factory is needed.",
    )
    return app(session(url(placed)))


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for programs."
)


_NEARNESS: Final = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def _is_nearer(one: str, other: str) -> bool:
    """Tell whether *one* was given at least as near to the user as *other*."""
    ctx = click.get_current_context()

    def distance(name: str) -> int:
        source = ctx.get_parameter_source(name)
        return _NEARNESS.index(source) if source in _NEARNESS else len(_NEARNESS)

    return distance(one) <= distance(other)
