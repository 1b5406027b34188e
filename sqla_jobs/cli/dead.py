"""``sqla-jobs dead``: the dead letters; list, retry, discard, one by one or all."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from sqla_jobs import inspect
from sqla_jobs.cli import json, tables
from sqla_jobs.cli.command import Verbs, json_option, place_options
from sqla_jobs.cli.lists import (
    chosen,
    filter_options,
    job_cells,
    job_columns,
    now,
    page_options,
    tell_rest,
)
from sqla_jobs.cli.steer import steer, steer_options
from sqla_jobs.inspect.groups import last_line
from sqla_jobs.queue.changes import Change

if TYPE_CHECKING:
    from datetime import datetime

    from sqla_jobs.cli.command import Place
    from sqla_jobs.inspect import DeadGroup, DeadGroups, DeadLetter, Page


@click.group(cls=Verbs)
def dead() -> None:
    """Look at dead letters, and give them another chance."""


@dead.command("list")
@filter_options("Died")
@click.option(
    "--group",
    is_flag=True,
    help="One line for all that died of the same thing, the most frequent first.",
)
@page_options
@place_options
@json_option
def list_(
    *,
    place: Place,
    group: bool,
    limit: int,
    after: str | None,
    as_json: bool,
    **filters: object,
) -> None:
    """List dead jobs with their last error, the latest death first.

    With --group: what they died of. The # in a message stands for what differs.
    """
    if group and after is not None:
        raise click.UsageError("--after goes with a list, not with --group.")
    with place.look() as session:
        meant = chosen(session, filters, time="finished")
        seen_at = now(session)
        found = (
            inspect.dead_groups(session, filters=meant, limit=limit)
            if group
            else inspect.dead_letters(session, filters=meant, after=after, limit=limit)
        )
    if as_json:
        json.write(found.as_dict())
    elif isinstance(found, inspect.DeadGroups):
        _print_groups(found, seen_at)
    else:
        _print_letters(found, seen_at)


def _print_letters(page: Page[DeadLetter], seen_at: datetime) -> None:
    columns = job_columns()
    wide = "key" in columns
    made = tables.table(*columns, *(["error"] if wide else []), "died")
    for letter in page.items:
        said = _summary(letter.error_type, last_line(letter.error))
        error = tables.cell(said, "red")
        ended = letter.finished_at
        died = "-" if ended is None else tables.relative(ended, seen_at)
        cells = job_cells(letter, error if said else None)
        made.add_row(*cells, *([error] if wide else []), died)
    tables.show(made, "No dead letters.")
    tell_rest(page)


def _print_groups(found: DeadGroups, seen_at: datetime) -> None:
    made = tables.table("dead", "job and error, one of them", "died")
    made.columns[0].justify = "right"
    for group in found.groups:
        last = tables.relative(group.last_at, seen_at)
        first = tables.relative(group.first_at, seen_at)
        made.add_row(
            tables.count(group.count),
            tables.stack(
                tables.cell(group.name),
                tables.cell(_summary(group.error_type, group.message), "red"),
                tables.cell(group.sample_id, "dim"),
            ),
            tables.stack(
                tables.cell(last),
                None if first == last else tables.cell(f"to {first}", "dim"),
            ),
        )
    tables.show(made, "No dead letters.")
    if found.groups:
        _tell_how(found.groups[0])
    if found.more:
        click.echo("There are more groups: see --limit.", err=True)
    if found.older:
        deaths = f"{found.looked_at:,} deaths"
        click.echo(f"Only the latest {deaths} were looked at: see --until.", err=True)


def _tell_how(group: DeadGroup) -> None:
    """Say what can be done about *group*, as commands to copy."""
    again = ["sqla-jobs", "dead", "retry", "--all", "--name", group.name]
    if group.error_type is not None:
        again += ["--error", group.error_type]
    click.echo(
        f"\nLook at one: sqla-jobs jobs show {group.sample_id}\n"
        f"Run them again: {tables.visible(shlex.join(again))}",
        err=True,
    )


def _summary(kind: str | None, last: str) -> str:
    """Return the type of an error with its last line, where tracebacks say it."""
    if not kind or kind in last:
        return last
    return f"{kind}: {last}" if last else kind


@dead.command()
@filter_options("Died")
@steer_options
@place_options
def retry(**options: Any) -> None:  # noqa: ANN401 - click's parameters
    """Run dead jobs again, with their old input."""
    steer(Change.RETRY, dead=True, **options)


@dead.command()
@filter_options("Died")
@steer_options
@place_options
def discard(**options: Any) -> None:  # noqa: ANN401 - click's parameters
    """Delete dead jobs with all that belongs to them, for good."""
    steer(Change.DISCARD, dead=True, **options)
