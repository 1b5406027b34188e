"""``sqla-jobs backfill``: see, run and steer backfills."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from sqla_jobs.backfills import (
    BackfillReport,
    accept_failures,
    backfill_report,
    backfill_reports,
    baseline_backfill,
    cancel_backfill,
    pause_backfill,
    resume_backfill,
    retry_failures,
    set_backfill_pace,
)
from sqla_jobs.backfills.ledger import failures as failures_of
from sqla_jobs.backfills.report import pending
from sqla_jobs.cli import json, tables
from sqla_jobs.cli.backfill_run import run
from sqla_jobs.cli.command import Verbs, json_option, place_options
from sqla_jobs.cli.lists import now
from sqla_jobs.exc import BackfillUnknownError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from rich.text import Text

    from sqla_jobs.cli.command import Place
    from sqla_jobs.declare.backfill import BackfillSpec

COLOURS: Final = {
    "done": "green",
    "skipped": "green",
    "running": "bold blue",
    "failed": "bold red",
    "stalled": "bold red",
    "paused": "yellow",
    "cancelled": "yellow",
}

by_option = click.option(
    "--by",
    default=lambda: os.environ.get("USER"),
    help="Who does it, for the history; your user name unless given.",
)
reason_option = click.option("--reason", required=True, help="Why, for the history.")
name_argument = click.argument("name")


@click.group(cls=Verbs)
def backfill() -> None:
    """See, run and steer backfills."""


backfill.add_command(run)


@backfill.command("list")
@place_options
@json_option
def list_(*, place: Place, as_json: bool) -> None:
    """Show every backfill: those that --app declares and those that were run."""
    with place.look() as session:
        found = backfill_reports(session, specs_of(place))
    if as_json:
        json.write({"backfills": [report.as_dict() for report in found]})
        return
    made = tables.table("name", "state", "done", "rows", "rows/s", "to go", "failed")
    for column in made.columns[2:]:
        column.justify = "right"
    for report in found:
        total = "" if report.rows_estimate is None else f" of {report.rows_estimate:,}"
        made.add_row(
            tables.cell(report.name),
            tables.cell(report.status, COLOURS.get(report.status, "")),
            "-" if report.percent is None else f"{report.percent:.1f} %",
            f"{report.rows_done:,}{'' if report.ended else total}",
            "-" if report.rows_per_second is None else f"{report.rows_per_second:,.0f}",
            "-" if report.eta is None else tables.span(report.eta),
            tables.cell(report.failures, "red" if report.failures else ""),
        )
    tables.show(made, "No backfills: none is declared and none was run.")


@backfill.command()
@name_argument
@place_options
@json_option
def status(*, name: str, place: Place, as_json: bool) -> None:
    """Show all that is known of the backfill NAME."""
    with place.look() as session:
        specs = specs_of(place)
        report = backfill_report(session, name, specs)
        if report is None:
            raise BackfillUnknownError(name, specs)
        seen_at = now(session)
    if as_json:
        json.write(report.as_dict())
    else:
        tables.console().print(tables.facts(_facts(report, seen_at)))


def _facts(
    report: BackfillReport, seen_at: datetime
) -> Iterator[tuple[str, Text | str]]:
    yield "name", report.name
    yield "state", tables.cell(report.status, COLOURS.get(report.status, ""))
    if not report.declared:
        yield "declared", "no: this --app does not know it"
    yield "after", report.after or "-"
    yield "table", report.table or "-"
    total = (
        "" if report.rows_estimate is None else f" of about {report.rows_estimate:,}"
    )
    yield "rows", f"{report.rows_done:,}{'' if report.ended else total}"
    if report.percent is not None:
        yield "done", f"{report.percent:.1f} %, pass {report.pass_number}"
    if report.rows_per_second is not None:
        yield "speed", f"{report.rows_per_second:,.0f} rows/s"
    if report.eta is not None and not report.ended:
        yield "to go", tables.span(report.eta)
    yield "failures", str(report.failures)
    for option, value in (("batch size", report.batch_size), ("rate", report.rate)):
        if value is not None:
            yield f"{option} set", f"{value:g}"
    if report.requested is not None:
        yield "asked to", report.requested
    if report.holder is not None:
        yield "run by", report.holder
    if report.reason is not None:
        yield "reason", report.reason
    for title, at in (
        ("started", report.started_at),
        ("last seen", report.beat_at),
        ("finished", report.finished_at),
    ):
        if at is not None:
            yield title, f"{tables.moment(at)} ({tables.relative(at, seen_at, 2)})"
    if report.error is not None:
        yield "error", tables.cell(f"{report.error_type}: {report.error}", "red")


@backfill.command()
@place_options
@json_option
def check(*, place: Place, as_json: bool) -> None:
    """Exit with 1 while a backfill is not done: the last step of a deploy."""
    with place.look() as session:
        left = pending(backfill_reports(session, _declared(place)))
    if as_json:
        json.write({"pending": [report.as_dict() for report in left]})
    for report in left:
        line = f"{report.name} is {report.status}: sqla-jobs backfill run {report.name}"
        click.echo(tables.visible(line), err=as_json)
    if left:
        click.get_current_context().exit(1)
    if not as_json:
        click.echo("All backfills are done.")


@backfill.command()
@name_argument
@place_options
@json_option
def failures(*, name: str, place: Place, as_json: bool) -> None:
    """Show the rows on which the backfill NAME failed."""
    with place.look() as session:
        found = failures_of(session, name)
        if not found and backfill_report(session, name, specs_of(place)) is None:
            raise BackfillUnknownError(name, specs_of(place))
    if as_json:
        rows = [
            {
                "key": row.key_text,
                "state": row.state,
                "at": row.at.isoformat(),
                "error_type": row.error_type,
                "error": row.error,
            }
            for row in found
        ]
        json.write({"failures": rows})
        return
    made = tables.table("key", "state", "when", "error")
    for row in found:
        made.add_row(
            tables.cell(row.key_text),
            tables.cell(row.state),
            tables.moment(row.at),
            tables.cell(f"{row.error_type}: {row.error}"),
        )
    tables.show(made, "No row failed.")


@backfill.command()
@name_argument
@by_option
@click.option("--reason", help="Why, for the history.")
@place_options
def pause(*, name: str, by: str | None, reason: str | None, place: Place) -> None:
    """Stop the backfill NAME after its batch; run or resume goes on."""
    with place.open() as session:
        outcome = pause_backfill(session, name, by=by, reason=reason)
    _tell(name, "is paused" if outcome == "paused" else "pauses after its batch")


@backfill.command()
@name_argument
@by_option
@click.option("--reason", help="Why, for the history.")
@place_options
def cancel(*, name: str, by: str | None, reason: str | None, place: Place) -> None:
    """End the backfill NAME; the rows that it changed stay so."""
    with place.open() as session:
        outcome = cancel_backfill(session, name, by=by, reason=reason)
    _tell(name, "is cancelled" if outcome == "cancelled" else "ends after its batch")


@backfill.command()
@name_argument
@click.option("--from-start", is_flag=True, help="Walk through all rows again.")
@by_option
@place_options
def resume(*, name: str, from_start: bool, by: str | None, place: Place) -> None:
    """Let the paused, failed or cancelled backfill NAME be run again."""
    with place.open() as session:
        resume_backfill(session, name, from_start=from_start, by=by)
    _tell(name, f"is pending: sqla-jobs backfill run {name}")


@backfill.command("set")
@name_argument
@click.option("--batch-size", type=click.IntRange(1), help="Rows per transaction.")
@click.option("--rate", type=float, help="Rows per second.")
@by_option
@place_options
def set_(
    *,
    name: str,
    batch_size: int | None,
    rate: float | None,
    by: str | None,
    place: Place,
) -> None:
    """Change the pace of the backfill NAME, also while it runs."""
    with place.open() as session:
        set_backfill_pace(session, name, batch_size=batch_size, rate=rate, by=by)
    _tell(name, "goes on so from its next batch")


@backfill.command("retry-failures")
@name_argument
@by_option
@place_options
def retry_failures_(*, name: str, by: str | None, place: Place) -> None:
    """Let the next run of the backfill NAME try the rows again that failed."""
    with place.open() as session:
        retry_failures(session, name, by=by)
    _tell(name, f"is pending: sqla-jobs backfill run {name}")


@backfill.command()
@name_argument
@reason_option
@by_option
@place_options
def accept(*, name: str, reason: str, by: str | None, place: Place) -> None:
    """Let the rows stay as they are on which the backfill NAME failed."""
    with place.open() as session:
        count = accept_failures(session, name, reason=reason, by=by)
    _tell(name, f"has {count} accepted rows; sqla-jobs backfill run {name} ends it")


@backfill.command()
@reason_option
@by_option
@place_options
def baseline(*, reason: str, by: str | None, place: Place) -> None:
    """Mark all declared backfills as skipped, where the tables were made as they end up."""
    specs = _declared(place)
    with place.open() as session:
        marked = [
            name
            for name, spec in sorted(specs.items())
            if baseline_backfill(session, spec, reason=reason, by=by)
        ]
    click.echo(f"Marked as skipped: {', '.join(marked) or 'none'}")


def specs_of(place: Place) -> Mapping[str, BackfillSpec]:
    """Return the backfills that ``--app`` declares; none without it."""
    jobs = place.jobs()
    return {} if jobs is None else jobs.backfills


def _declared(place: Place) -> Mapping[str, BackfillSpec]:
    """Return the same; a usage error without ``--app``: "all" would mean none."""
    if place.app is None:
        raise click.UsageError("Which application? Give --app MODULE:ATTRIBUTE.")
    return specs_of(place)


def _tell(name: str, what: str) -> None:
    click.echo(tables.visible(f"{name} {what}"))
