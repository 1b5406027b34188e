"""``sqla-jobs config``: which settings are in force, and where each was given."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from sqla_jobs.cli import json, tables
from sqla_jobs.cli.command import Verb, json_option, place_options
from sqla_jobs.settings import ENV_SCHEMA, pyproject_section, schema_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqla_jobs.cli.command import Place

HIDDEN: Final = "***"
FILE: Final = "pyproject.toml"


@click.command(cls=Verb)
@place_options
@json_option
def config(*, place: Place, as_json: bool) -> None:
    """Show the settings in force and where each was given; connects to nothing.

    The command line wins over the environment, and that over pyproject.toml. An empty
    variable is one that is not there. Of the database's password nothing is shown.
    """
    found = list(_settings(place))
    if as_json:
        facts = {name: {"value": v, "source": s} for name, v, s in found}
        json.write({"settings": facts})
        return
    made = tables.table("setting", "value", "from")
    for name, value, source in found:
        made.add_row(name, tables.cell("-" if value is None else value), source)
    tables.show(made, "")


def _settings(place: Place) -> Iterator[tuple[str, str | None, str]]:
    yield "app", place.app, _source("app", place.app)
    sessions = " ".join(place.sessions) or None
    yield "session", sessions, _source("sessions", sessions)
    url = None if place.url is None else _without_password(place.url)
    yield "database-url", url, _source("database_url", url)
    schema = schema_name()
    from_file = pyproject_section().get("schema")
    if os.environ.get(ENV_SCHEMA):
        yield "schema", schema, f"environment ({ENV_SCHEMA})"
    else:
        yield "schema", schema, FILE if from_file else "default"


def _source(name: str, value: str | None) -> str:
    """Say where the option *name* was given."""
    ctx = click.get_current_context()
    source = ctx.get_parameter_source(name)
    if source is ParameterSource.ENVIRONMENT:
        option = next(param for param in ctx.command.params if param.name == name)
        return f"environment ({option.envvar})"
    if source is ParameterSource.COMMANDLINE:
        return "command line"
    return "default" if value is None else FILE


def _without_password(url: str) -> str:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return "not a URL"
    # Drivers take a password among the parameters as well, and other secrets.
    query = "&".join(f"{name}={HIDDEN}" for name in parsed.query)
    shown = parsed.set(query={}).render_as_string(hide_password=True)
    return f"{shown}?{query}" if query else shown
