"""Finding what ``module:attribute`` names: only what the operator wrote is imported.

Nothing that stands in a row of the database is ever imported.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

import click
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from sqla_jobs.declare.registry import Jobs
from sqla_jobs.dialects import OWN_DRIVER
from sqla_jobs.queue.connections import engine_of, own_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import URL, Engine

FORM: Final = "give MODULE:ATTRIBUTE, such as shop.jobs:jobs"


def attribute_at(place: str, option: str) -> Any:  # noqa: ANN401 - whatever is there
    """Import what *place* (``module:attribute``) names; the working directory counts.

    Raises a usage error that says what is missing, and what there is instead.
    """
    name, colon, path = place.partition(":")
    if not (name and colon and path):
        raise click.BadParameter(f"{place!r}: {FORM}.", param_hint=option)
    found: Any = _module(name, option)
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            there = _public(found)
            raise click.BadParameter(
                f"{place!r}: {name} has no {attribute!r}; it has {there}.",
                param_hint=option,
            )
        found = getattr(found, attribute)
    return found


def _module(name: str, option: str) -> object:
    # A console script does not have the working directory on its path; `python -m`
    # does, and people start both in the folder of their application.
    here = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, option, error) from error
        raise click.BadParameter(
            f"there is no module {error.name!r} in {here} or on the Python path.",
            param_hint=option,
        ) from error
    except Exception as error:
        raise _broken(name, option, error) from error


def _broken(name: str, option: str, error: Exception) -> click.BadParameter:
    """Return the error of a module that is there and fails: its author needs where."""
    trace = traceback.extract_tb(error.__traceback__)
    # Our own frame and the import system's come first.
    theirs = [frame for frame in trace if "importlib" not in frame.filename][1:]
    where = f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""
    return click.BadParameter(
        f"importing {name} failed: {type(error).__name__}: {error}{where}.",
        param_hint=option,
    )


def _public(found: object) -> str:
    names = sorted(name for name in vars(found) if not name.startswith("_"))
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "") or "nothing"


def jobs_at(place: str) -> Jobs:
    """Return the registry at *place*, or raise a usage error that tells the nearest."""
    found = attribute_at(place, "--app")
    if isinstance(found, Jobs):
        return found
    module = place.partition(":")[0]
    here = sorted(
        name
        for name, value in vars(sys.modules[module]).items()
        if isinstance(value, Jobs)
    )
    hint = f" That module has {', '.join(here)}." if here else ""
    raise click.BadParameter(
        f"{place!r} is a {type(found).__name__}, not a sqla_jobs.Jobs registry.{hint}",
        param_hint="--app",
    )


def factory_at(place: str) -> Callable[[], Any]:
    """Return the session factory at *place*."""
    found = attribute_at(place, "--session")
    if callable(found):
        factory: Callable[[], Any] = found
        return factory
    raise click.BadParameter(
        f"{place!r} is a {type(found).__name__}, not a session factory such as"
        " sessionmaker(engine, class_=JobSession).",
        param_hint="--session",
    )


def is_async(factory: Callable[[], Any]) -> bool:
    """Tell whether *factory* makes async sessions.

    A session is made to see it, which opens no connection. Known by what it wraps, so
    that this works where greenlet is not installed.
    """
    made = factory()
    if hasattr(made, "sync_session"):
        return True
    if not hasattr(factory, "remove"):  # a scoped_session's one may be in use
        made.close()
    return False


def engine_behind(place: str) -> Engine:
    """Return an engine of our own on the database of the session factory at *place*."""
    factory = factory_at(place)
    try:
        return own_engine(engine_of(factory))
    except SQLAlchemyError as error:
        raise click.BadParameter(
            f"{place!r} has no engine for jobs: {error}", param_hint="--session"
        ) from error


def engine_at(url: str) -> Engine:
    """Return an engine of our own on the database at *url*; connects lazily.

    Errors do not repeat the URL: it holds a password.
    """
    parsed = url_at(url)
    try:
        return own_engine(create_engine(parsed))
    except (NoSuchModuleError, ImportError) as error:
        raise click.BadParameter(
            f"there is no driver for {parsed.drivername} here: {error}.",
            param_hint="--database-url",
        ) from error


def url_at(url: str) -> URL:
    """Return *url* for our own driver, or raise a usage error that does not show it."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise click.BadParameter(
            "is no database URL: give postgresql+psycopg://user:password@host/name.",
            param_hint="--database-url",
        ) from error
    backend = parsed.get_backend_name()
    driver = OWN_DRIVER.get(backend)
    return parsed.set(drivername=f"{backend}+{driver}") if driver else parsed
