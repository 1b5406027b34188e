"""The facts of a run as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tests.chaos.crew import summed
from tests.chaos.scenario import Outcome


def show(outcome: Outcome, console: Console) -> None:
    """Print what was done, what came out, and which rules hold."""
    console.print(_done(outcome), _came(outcome), _rules(outcome))
    for finding in outcome.broken:
        console.print(f"[red]{finding.says}[/red]", *finding.broken, sep="\n  ")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name in columns:
        table.add_column(name)
    return table


def _done(outcome: Outcome) -> Table:
    tally = outcome.tally
    table = _table("What was done to the processes", "what", "facts")
    for role in ("worker", "producer", "steward"):
        table.add_row(
            f"{role}s",
            f"{tally.starts[role]} starts, {tally.killed[role]} killed,"
            f" {tally.stopped[role]} stopped gracefully",
        )
    table.add_row("from outside", _counts(tally.blows))
    inside: dict[str, int] = {}
    for (point, action), count in tally.faults.items():
        inside[f"{point} {action}"] = count
    table.add_row("from inside", f"{summed(tally.faults)}: {_counts(inside)}")
    table.add_row("freezes", f"{tally.freezes}, {tally.fatal_freezes} beyond the lease")
    return table


def _came(outcome: Outcome) -> Table:
    table = _table("What came out", "what", "facts")
    for name, value in outcome.facts.items():
        table.add_row(name, str(value))
    table.add_row("attempts that did not succeed", _counts(outcome.attempts))
    table.add_row("counted by the workers", _counts(outcome.tally.stats))
    return table


def _rules(outcome: Outcome) -> Table:
    table = _table("What must hold", "holds", "rule")
    for finding in outcome.findings:
        mark = "[green]yes[/green]" if finding.holds else "[red]NO[/red]"
        table.add_row(mark, finding.says)
    return table


def _counts(counts: dict[str, int]) -> str:
    shown = sorted(counts.items())
    return ", ".join(f"{name} {count}" for name, count in shown if count) or "none"
