"""``python -m tests.chaos --minutes N``: the long form, on a durable server of its own."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from rich.console import Console
from sqlalchemy import create_engine

from tests.chaos import one_file, report, witness
from tests.chaos.plan import Plan
from tests.chaos.scenario import Scenario
from tests.support.processes import Processes
from tests.support.server import embedded


def main() -> int:
    """Run the chaos; return 1 when a rule is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of chaos")
    parser.add_argument("--seed", type=int, default=None, help="of everything chosen")
    parser.add_argument("--workers", type=int, default=4, help="worker processes")
    parser.add_argument("--producers", type=int, default=3, help="producer processes")
    parser.add_argument(
        "--restarts",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="crash and restart the server, on average so often",
    )
    parser.add_argument(
        "--kills",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="end a session in the server, on average so often",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep logs and journals also when all holds",
    )
    parser.add_argument(
        "--db",
        choices=("postgresql", "sqlite"),
        default="postgresql",
        help="a server of its own, or processes on one file",
    )
    given = parser.parse_args()
    # The embedded server's wheel asks for a runtime folder when it is imported.
    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
    console = Console()
    if given.db == "sqlite":
        return _on_one_file(given, console)
    plan = Plan(
        seed=secrets.randbits(32) if given.seed is None else given.seed,
        seconds=given.minutes * 60,
        folder=tempfile.mkdtemp(prefix="sqla-jobs-chaos-"),
        workers=given.workers,
        producers=given.producers,
        long_freezes=True,
        between_restarts=given.restarts,
        between_kills=given.kills,
    )
    plan.prepare()
    console.print(f"chaos: seed {plan.seed}, {plan.seconds:g} s, in {plan.folder}")
    with embedded(durable=True) as server:
        with server.connect() as admin:
            admin.execute("create database chaos")
        engine = create_engine(server.database("chaos"), pool_pre_ping=True)
        witness.create(engine)
        url = engine.url.render_as_string(hide_password=False)
        with Processes({"SQLA_JOBS_DATABASE_URL": url}) as processes:
            outcome = Scenario(plan, engine, processes, server.control).run(server.log)
        engine.dispose()
    report.show(outcome, console)
    console.print(f"seed {plan.seed}: {'FAILED' if outcome.broken else 'all holds'}")
    if outcome.broken:
        console.print(f"logs and journals: {plan.folder}")
        return 1
    if not given.keep:
        shutil.rmtree(plan.folder)
    return 0


def _on_one_file(given: argparse.Namespace, console: Console) -> int:
    seed = secrets.randbits(32) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="sqla-jobs-chaos-"))
    console.print(f"chaos: seed {seed}, {given.minutes * 60:g} s, in {folder}")
    chaos = one_file.Chaos(folder, given.minutes * 60, seed)
    with Processes() as processes:
        rules = chaos.run(processes)
    holds = one_file.show(chaos, rules, console)
    console.print(f"seed {seed}: {'all holds' if holds else 'FAILED'}")
    if holds and not given.keep:
        shutil.rmtree(folder)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
