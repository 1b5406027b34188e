"""Tables and texts for people; what comes from rows cannot steer the terminal."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sqla_jobs.inspect import COUNT_LIMIT
from sqla_jobs.states import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable

STYLES: Final[dict[str, str]] = {
    JobState.READY: "cyan",
    JobState.RUNNING: "bold blue",
    JobState.WAITING: "cyan",
    JobState.SUCCEEDED: "green",
    JobState.DEAD: "bold red",
    JobState.CANCELLED: "yellow",
}
PIPE_WIDTH: Final = 160
"""Columns where no terminal says how many it has."""
WIDE: Final = 150
"""Columns in which all facts of a job stand on one line."""
MIDDLE: Final = 100
"""Columns in which they stand on two, beside the id."""
ID_WIDTH: Final = 36
WHOLE: Final = frozenset(
    {
        "id",
        "state",
        "tries",
        "when",
        "died",
        "lease",
        "running",
        "hears",
        "started",
        "took",
    }
)
"""Columns whose short texts are never broken."""


def console() -> Console:
    """Return a console on stdout; no colours where no terminal is."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


def table(*columns: str) -> Table:
    """Return an empty table without lines; a column that holds ids is never cut."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in columns:
        least = ID_WIDTH if name in {"id", "job"} else None
        made.add_column(name, no_wrap=name in WHOLE, min_width=least, overflow="fold")
    return made


def visible(text: str, *, lines: bool = False) -> str:
    """Return *text* with control characters shown as escapes; *lines* keeps breaks.

    Names, keys and errors come from jobs: an escape sequence among them must not move
    the cursor, and a right-to-left mark must not turn a line around.
    """
    kept = "\n" if lines else ""
    return "".join(
        char
        if char.isprintable() or char in kept
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def cell(text: object, style: str = "") -> Text:
    """Return *text* as it is: brackets in it are no markup."""
    return Text(visible(str(text)), style=style, overflow="fold")


def stack(*parts: Text | None) -> Text:
    """Return the given parts below each other."""
    return Text("\n").join([part for part in parts if part is not None])


def state(name: str) -> Text:
    """Return a state in its colour."""
    return Text(visible(name), style=STYLES.get(name, ""))


def count(number: int) -> str:
    """Return a count; the largest one stands for all that are larger."""
    return f">{COUNT_LIMIT - 1:,}" if number >= COUNT_LIMIT else f"{number:,}"


def moment(at: datetime | None) -> str:
    """Return an instant with its zone."""
    if at is None:
        return "-"
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def span(length: timedelta, units: int = 2) -> str:
    """Return a duration in its largest *units*: ``3d 4h``, ``1m 5s``, ``0.4s``."""
    seconds = length.total_seconds()
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    parts: list[tuple[int, str]] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        amount, whole = divmod(whole, size)
        if amount or parts:
            parts.append((amount, unit))
    return " ".join(f"{amount}{unit}" for amount, unit in parts[:units] if amount)


def relative(at: datetime, now: datetime, units: int = 1) -> str:
    """Return how long ago *at* was, or in how long it will be."""
    if at > now:
        return f"in {span(at - now, units)}"
    return f"{span(now - at, units)} ago"


def or_text(made: Table, empty: str) -> Table | Text:
    """Return *made*, or the sentence *empty* when it has no rows."""
    return made if made.row_count else Text(empty)


def show(made: Table, empty: str) -> None:
    """Print *made*, or the sentence *empty* when it has no rows."""
    console().print(or_text(made, empty))


def width() -> int:
    """Return the columns of the terminal, or of what is written without one."""
    return console().width


def facts(pairs: Iterable[tuple[str, Text | str]]) -> Table:
    """Return names and values below each other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, value if isinstance(value, Text) else cell(value))
    return grid
