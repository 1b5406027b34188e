"""What the demo shows: steps as they are done, live bars, a table at the end."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from examples.weather.demo.facts import Facts, Progress
from examples.weather.demo.verify import Check


class View:
    """Talks to a person; where no terminal is, in plain lines without the bars."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            expand=True,
            transient=True,
            disable=not console.is_terminal or console.quiet,
        )
        self._days = self._bars.add_task("days imported", note="", total=None)
        self._jobs = self._bars.add_task("jobs settled", note="", total=None)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def say(self, line: str, style: str = "") -> None:
        """Tell one step, with the time since the start."""
        passed = f"{time.monotonic() - self._started:5.1f} s  "
        text = Text(passed, style="dim").append(line, style=style or "none")
        self._console.print(text, soft_wrap=True)

    def show(self, progress: Progress, days: int, note: str) -> None:
        """Move the bars."""
        self._bars.update(self._days, completed=progress.days, total=days)
        counts = [
            (progress.attempts.get("failed", 0), "retried"),
            (progress.attempts.get("lost", 0), "rescued"),
            (progress.states.get("dead", 0), "dead"),
        ]
        self._bars.update(
            self._jobs,
            completed=progress.settled,
            total=2 * days,
            note=note or ", ".join(f"{n} {what}" for n, what in counts if n),
        )

    def report(self, facts: Facts, checks: Sequence[Check]) -> None:
        """Print the end: the table, what was checked, and the dead letters."""
        self._console.print()
        self._console.print(_numbers(facts))
        for check in checks:
            word = Text("ok     ", "green") if check.holds else Text("FAILED ", "red")
            self._console.print(word.append(f"{check.says}: {check.detail}", "none"))
        for letter in facts.dead_letters:
            self._console.print()
            line = f"Dead letter: {letter.job} {letter.key}, {letter.attempts} attempts"
            self._console.print(Text(line))
            self._console.print(Text(f"  {letter.error}", style="dim"))
        failed = sum(not check.holds for check in checks)
        end = (
            f"{failed} of {len(checks)} checks failed" if failed else "All checks hold"
        )
        self._console.print()
        self._console.print(f"{end}.", style="bold red" if failed else "bold green")


def _numbers(facts: Facts) -> Table:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right", style="bold")
    table.add_column(style="dim")
    source = f"{facts.readings:,} readings of {facts.stations} stations"
    speed = f"{facts.jobs_per_second:g} over all {facts.seconds:.1f} s"
    rows = [
        ("days imported", facts.days_imported, source),
        ("jobs succeeded", facts.jobs_succeeded, f"of {facts.jobs:,}, two per day"),
        ("jobs retried", facts.jobs_retried, "an attempt failed, so they ran again"),
        ("jobs rescued", facts.jobs_rescued, "from the killed worker, by the other"),
        ("jobs dead", facts.jobs_dead, "out of attempts: the spoilt day"),
        ("jobs/s", facts.jobs_per_second_peak, f"in the busiest second; {speed}"),
    ]
    for name, number, how in rows:
        table.add_row(name, f"{number:,}", how)
    return table
