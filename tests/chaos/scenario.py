"""One run: chaos for a while, calm, drain, graceful stop, audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import attrs
from sqlalchemy import Connection, Engine, TextClause, text
from sqlalchemy.orm import sessionmaker

from sqla_jobs import JobSession
from tests.chaos.audit import Finding, audit, load_journals
from tests.chaos.crew import Crew
from tests.chaos.journal import read
from tests.chaos.outage import Outages
from tests.chaos.plan import Plan
from tests.chaos.steward import resume_all
from tests.chaos.tables import WORKER
from tests.chaos.tally import Tally
from tests.support.processes import Processes
from tests.support.server import Control

LOOK = 0.05
BETWEEN_SAMPLES = 0.5
TELLING = 30
"""Blows of one kind that cannot all have hit a worker that held nothing; what must
follow from a single one is told by tests/acceptance/test_freeze.py and test_kill.py."""
LONGEST_IDLE = 17.0
"""Seconds: what the server lets a transaction idle that holds a job, and a little."""
SETTLED_CONNECTIONS = 5.0
"""Seconds in which the server notices that its clients have gone."""

IDLE = text(
    """select coalesce(max(extract(epoch from clock_timestamp() - state_change)), 0)
         from pg_stat_activity
        where datname = current_database() and state like 'idle in transaction%'
          and application_name = :name"""
)
UNFINISHED = text(
    "select count(*) from sqla_job where state in ('ready', 'running', 'waiting')"
)
OTHERS = text(
    """select count(*) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()
          and backend_type = 'client backend' and xact_start is not null"""
)
FACTS = text(
    """select (select count(*) from sqla_job) as jobs,
              (select count(*) from sqla_job where state = 'succeeded') as succeeded,
              (select count(*) from sqla_job where state = 'dead') as dead,
              (select count(*) from sqla_job where state = 'cancelled') as cancelled,
              (select count(*) from chaos_log
                where state = 'running' and old_state <> 'running') as claims,
              (select count(*) from chaos_log
                where old_fence < fence and state = 'ready') as new_lives_and_rescues,
              (select count(*) from chaos_effect) as effects,
              (select count(*) from sqla_worker) as worker_identities"""
)
ATTEMPTS = text("select outcome, count(*) from sqla_attempt group by 1 order by 1")
UNDONE = text(
    """select count(*) from unnest(cast(:ids as uuid[]), cast(:fences as bigint[]))
         as r(job_id, fence)
        where exists (select 1 from sqla_attempt a
                       where a.job_id = r.job_id and a.fence = r.fence
                         and a.outcome in ('lost', 'timed_out', 'cancelled'))"""
)


@attrs.define
class Outcome:
    """What a run has shown."""

    plan: Plan
    tally: Tally
    findings: list[Finding] = attrs.Factory(list)
    facts: dict[str, object] = attrs.Factory(dict)
    attempts: dict[str, int] = attrs.Factory(dict)

    @property
    def broken(self) -> list[Finding]:
        """The rules that do not hold."""
        return [finding for finding in self.findings if not finding.holds]


class Scenario:
    """The run on one database, whose tables and witness are there."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        processes: Processes,
        control: Control | None = None,
    ) -> None:
        """Take the *engine* of a database; *control* of its server, for restarts."""
        self._plan = plan
        self._engine = engine
        self._crew = Crew(plan, processes)
        self._outages = Outages(plan, engine, control, self._crew.tally)
        # Autocommit: each look is a new snapshot of the server's statistics.
        self._looking = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._idlest = 0.0
        self._lost = 0
        self._sample_at = 0.0

    def run(self, log: Path | None = None) -> Outcome:
        """Go through all phases; *log* is the server's, if it is ours to read."""
        plan, crew = self._plan, self._crew
        started = time.monotonic()
        self._step_until(lambda: time.monotonic() > started + plan.seconds, 1e9)
        plan.calm()
        crew.thaw()
        calm = time.monotonic()
        resume_all(sessionmaker(self._engine, class_=JobSession))
        drained = self._step_until(self._is_drained, plan.drain)
        drain = time.monotonic() - calm
        stopped = crew.stop()
        self._until(lambda: self._number(OTHERS) == 0, SETTLED_CONNECTIONS)
        outcome = Outcome(plan, crew.tally)
        self._collect(outcome, log)
        outcome.facts["seconds of chaos"] = round(calm - started, 1)
        outcome.facts["seconds to drain"] = round(drain, 1)
        outcome.findings += self._findings(drained, stopped)
        return outcome

    def _step_until(self, reached: Callable[[], bool], limit: float) -> bool:
        def step() -> bool:
            self._crew.step()
            if not self._plan.is_calm:
                self._outages.step()
            self._sample()
            return reached()

        return self._until(step, limit)

    @staticmethod
    def _until(reached: Callable[[], bool], limit: float) -> bool:
        until = time.monotonic() + limit
        while not reached():
            if time.monotonic() > until:
                return False
            time.sleep(LOOK)
        return True

    def _is_drained(self) -> bool:
        return self._crew.idle() and self._number(UNFINISHED) == 0

    def _number(self, query: TextClause, **values: str) -> float:
        with self._looking.connect() as look:
            return float(look.execute(query, values).scalar_one())

    def _sample(self) -> None:
        if time.monotonic() >= self._sample_at:
            self._sample_at = time.monotonic() + BETWEEN_SAMPLES
            self._idlest = max(self._idlest, self._number(IDLE, name=WORKER))

    # --- what came out ---------------------------------------------------------------

    def _collect(self, outcome: Outcome, log: Path | None) -> None:
        with self._engine.connect() as connection:
            lines = chain.from_iterable(map(read, self._plan.journals()))
            load_journals(connection, lines)
            outcome.findings = audit(connection)
            self._gather(outcome, connection)
        if log is not None:
            found = log.read_text("utf-8", "replace").count("deadlock detected")
            outcome.facts["deadlocks in the server's log"] = found

    def _gather(self, outcome: Outcome, connection: Connection) -> None:
        facts = connection.execute(FACTS).mappings().one()
        outcome.facts |= {k.replace("_", " "): v for k, v in facts.items()}
        outcome.attempts = {row[0]: row[1] for row in connection.execute(ATTEMPTS)}
        self._lost = outcome.attempts.get("lost", 0)
        tally = outcome.tally
        stale = tally.stale
        outcome.facts["stale outcomes counted"] = tally.stats["stale"]
        outcome.facts["stale outcomes logged one by one"] = len(stale)
        outcome.facts["of which another has ended"] = connection.execute(
            UNDONE, {"ids": [i for i, _ in stale], "fences": [f for _, f in stale]}
        ).scalar_one()
        outcome.facts["stale writes refused by the database"] = (
            ", ".join(f"{name} {n}" for name, n in sorted(tally.refused.items()))
            or "none"
        )
        outcome.facts["longest idle transaction of a worker, s"] = round(
            self._idlest, 1
        )

    def _findings(self, drained: bool, stopped: bool) -> Iterator[Finding]:
        plan, tally = self._plan, self._crew.tally
        unfinished = [] if drained else [f"{self._number(UNFINISHED):g} unfinished"]
        yield Finding(f"all is settled within {plan.drain:g} s of calm", unfinished)
        yield Finding("every process stops when asked to", [] if stopped else ["no"])
        yield Finding("no process ended, or complained, by itself", tally.violations)
        idle = [] if self._idlest < LONGEST_IDLE else [f"{self._idlest:.1f} s"]
        says = f"no transaction of a worker idles longer than {LONGEST_IDLE:g} s"
        yield Finding(says, idle)
        stale = tally.fatal_freezes < TELLING or tally.stats["stale"]
        yield Finding(
            "what came back from a long freeze was refused, and counted",
            [] if stale else [f"{tally.fatal_freezes} freezes, nothing refused"],
        )
        lost = tally.killed["worker"] < TELLING or self._lost
        yield Finding(
            "what killed workers held is in the history as lost",
            [] if lost else [f"{tally.killed['worker']} kills, nothing lost"],
        )
