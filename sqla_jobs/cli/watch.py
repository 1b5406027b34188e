"""``--watch``: the same table again and again, until Ctrl-C."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from sqla_jobs.cli import tables
from sqla_jobs.cli.command import first_line
from sqla_jobs.cli.lists import now
from sqla_jobs.declare.duration import parse_duration

if TYPE_CHECKING:
    from datetime import timedelta

    from rich.console import RenderableType
    from sqlalchemy.orm import Session

    from sqla_jobs.cli.command import Place

F = TypeVar("F", bound=Callable[..., Any])

_never: Final = threading.Event()


def watch_options(command: F) -> F:
    """Add ``--watch`` and how often to look."""
    every = click.option(
        "--every",
        default="2s",
        show_default=True,
        callback=lambda _ctx, _param, value: parse_duration(value, field="--every"),
        help="How often to look again.",
    )
    on = click.option(
        "--watch",
        "watching",
        is_flag=True,
        help="Look again and again; Ctrl-C ends.",
    )
    return on(every(command))


def watch(
    place: Place, frame: Callable[[Session], RenderableType], every: timedelta
) -> None:
    """Show *frame* until Ctrl-C; once, where no terminal is.

    Every look is a transaction by itself. A database that cannot be reached for a while
    is told above the last frame, and asked again.
    """
    if click.get_current_context().params.get("as_json"):
        raise click.UsageError("--watch is for people; --json looks once.")
    with place.look() as session:
        shown = frame(session)
        if not _on_terminal():
            tables.console().print(shown)
            return
        seen_at = tables.moment(now(session))
        trouble = ""
        try:
            with Live(
                console=tables.console(), screen=True, auto_refresh=False
            ) as live:
                while True:
                    line = f"{seen_at}, every {tables.span(every)}, Ctrl-C ends"
                    head = Text(line, style="dim")
                    if trouble:
                        head.append(f"\nnot reached: {trouble}", style="bold red")
                    live.update(Group(head, Text(), shown), refresh=True)
                    _never.wait(every.total_seconds())
                    try:
                        shown, trouble = frame(session), ""
                        seen_at = tables.moment(now(session))
                    except DBAPIError as error:
                        trouble = tables.visible(first_line(error))
                    finally:
                        session.close()  # Else a broken connection is kept.
        except KeyboardInterrupt:
            return


def _on_terminal() -> bool:
    return sys.stdout.isatty()
