"""The chaos on SQLite: processes on one file, killed and frozen, and what must hold.

There is no server to crash and no witness beside the writers: one file, one writer at a
time. So the audit asks what a user would: is each committed job there and settled, did
each success have its effect once, and did "database is locked" reach anybody.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
from rich.console import Console
from rich.table import Table
from sqlalchemy import Uuid, create_engine, func, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import sqla_jobs
from sqla_jobs import (
    NO_TENANT,
    JobContext,
    Jobs,
    JobSession,
    Retry,
    Worker,
    clock,
    constant,
)
from sqla_jobs.asyncio import AsyncJobContext, AsyncJobSession
from sqla_jobs.models import Attempt, Job, WorkerRow
from sqla_jobs.states import FINISHED
from sqla_jobs.worker import rescuer
from tests.support.processes import Child, Processes

TTL = 2.0
PATIENCE = {"timeout": 30}
"""Longer than any freeze: who is frozen with the right to write keeps it meanwhile."""
DRAIN = 90.0
"""Seconds of calm in which all jobs must be settled."""
BACKLOG = 200
KINDS = ("plain", "slow", "flaky", "async")

jobs = Jobs()


class Base(DeclarativeBase):
    """The chaos's own tables."""


class Order(Base):
    """Written with its job in one transaction: both or neither."""

    __tablename__ = "chaos_order"
    key: Mapped[str] = mapped_column(primary_key=True)


class Effect(Base):
    """What a handler did; what happened twice is there twice."""

    __tablename__ = "chaos_effect"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(Uuid, index=True)


@attrs.frozen
class Work:
    """The input of every kind."""

    key: str


def _declared(kind: str) -> Any:
    return jobs.job(
        kind,
        input=Work,
        idempotency_key=lambda i: i.key,
        tenant=NO_TENANT,
        retry=Retry(attempts=20, backoff=constant("100ms")),
    )


@_declared("plain")
def plain(ctx: JobContext, work: Work) -> None:
    """Write the effect."""
    ctx.session.add(Effect(job_id=ctx.job_id))


@_declared("slow")
def slow(ctx: JobContext, work: Work) -> None:
    """Write the effect, and take a while before and after."""
    time.sleep(random.uniform(0.0, 0.5))
    ctx.session.add(Effect(job_id=ctx.job_id))
    ctx.session.flush()
    time.sleep(random.uniform(0.0, 0.1))


@_declared("flaky")
def flaky(ctx: JobContext, work: Work) -> None:
    """Write the effect, and fail after it now and then."""
    ctx.session.add(Effect(job_id=ctx.job_id))
    ctx.session.flush()
    if random.random() < 0.3:
        raise RuntimeError("now and then")


@_declared("async")
async def on_loop(ctx: AsyncJobContext, work: Work) -> None:
    """Write the effect on the handlers' loop."""
    ctx.session.add(Effect(job_id=ctx.job_id))


SPECS = {spec.name: spec for spec in (plain, slow, flaky, on_loop)}


def work(file: str) -> None:
    """Run a worker until it is asked, or made, to end."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO)
    vars(rescuer).update(INTERVAL=0.5, GRACE=timedelta(seconds=0.5))
    engine = create_engine(f"sqlite:///{file}", connect_args=PATIENCE)
    async_engine = create_async_engine(
        f"sqlite+aiosqlite:///{file}", connect_args=PATIENCE
    )
    Worker(
        jobs,
        session=sessionmaker(engine, class_=JobSession),
        async_session=async_sessionmaker(async_engine, class_=AsyncJobSession),
        queues={"default": 4},
        lease_ttl=timedelta(seconds=TTL),
        grace="2s",
    ).run()


def produce(file: str, journal: str, name: str, seconds: float) -> None:
    """Enqueue for *seconds*, and write down what was committed or taken back."""
    engine = create_engine(f"sqlite:///{file}", connect_args=PATIENCE)
    sessions = sessionmaker(engine, class_=JobSession)
    out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        key, kind = f"{name}.{number}", random.choice(KINDS)
        turned_back = random.random() < 0.2
        if turned_back:
            os.write(out, f"never {key}\n".encode())
        with sessions() as session:
            session.add(Order(key=key))
            session.enqueue(SPECS[kind], Work(key))
            if random.random() < 0.3:
                session.flush()
            if turned_back:
                session.rollback()
            else:
                session.commit()
                os.write(out, f"committed {key}\n".encode())
            left = select(func.count()).where(Job.state.not_in(sorted(FINISHED)))
            behind = session.scalar(left) or 0
        time.sleep(0.5 if behind > BACKLOG else random.uniform(0.0, 0.05))


class Chaos:
    """One run on a fresh file in *folder*."""

    def __init__(self, folder: Path, seconds: float, seed: int) -> None:
        """Make the tables."""
        self.folder, self.seconds = folder, seconds
        self.chance = random.Random(seed)
        self.file = folder / "chaos.db"
        self.engine = create_engine(f"sqlite:///{self.file}", connect_args=PATIENCE)
        sqla_jobs.metadata.create_all(self.engine)
        Base.metadata.create_all(self.engine)
        self.blows: Counter[str] = Counter()
        self.outputs: list[str] = []
        self.facts: dict[str, int] = {}

    def run(self, processes: Processes, workers: int = 3) -> dict[str, list[str]]:
        """Let it rage, calm down, drain and stop; return each rule with what broke it."""
        crew = [processes.call(work, str(self.file)) for _ in range(workers)]
        producers = [
            processes.call(produce, str(self.file), str(self.folder / f"p{n}.journal"),
                           f"p{n}", self.seconds)
            for n in range(2)
        ]  # fmt: skip
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            time.sleep(self.chance.uniform(0.2, 2.0))
            self._strike(processes, crew)
        complaints = [
            f"a producer ended with {code}"
            for each in producers
            if (code := each.wait(60.0)) != 0
        ]
        self.outputs += [each.output for each in producers]
        drained = self._drain()
        for each in crew:
            each.terminate()
        complaints += [
            f"a worker ended with {code}" for each in crew if (code := each.wait()) != 0
        ]
        self.outputs += [each.output for each in crew]
        return {
            "all jobs are settled": [] if drained else ["not in time"],
            "processes end as they are asked to": complaints,
            **self.audit(),
        }

    def _strike(self, processes: Processes, crew: list[Child]) -> None:
        place = self.chance.randrange(len(crew))
        victim = crew[place]
        if self.chance.random() < 0.5:
            self.blows["freeze"] += 1
            victim.freeze()
            time.sleep(self.chance.choice((0.2, 1.0, TTL + 1.0, TTL + 6.0)))
            victim.thaw()
            return
        self.blows["kill"] += 1
        victim.kill()
        self.outputs.append(victim.output)
        processes.release(victim)
        crew[place] = processes.call(work, str(self.file))

    def _drain(self) -> bool:
        left = select(func.count()).where(Job.state.not_in(sorted(FINISHED)))
        end = time.monotonic() + DRAIN
        while time.monotonic() < end:
            with self.engine.connect() as connection:
                if connection.scalar(left) == 0:
                    return True
            time.sleep(0.2)
        return False

    def audit(self) -> dict[str, list[str]]:
        """Return each rule about what is left behind, with what breaks it."""
        committed: set[str] = set()
        never: set[str] = set()
        for journal in self.folder.glob("*.journal"):
            for line in journal.read_text().splitlines():
                what, key = line.split(" ")
                (committed if what == "committed" else never).add(key)
        with self.engine.connect() as connection:
            rows = connection.execute(select(Job.key, Job.state, Job.id)).all()
            states = {row.key: row.state for row in rows}
            ids = {row.key: row.id for row in rows}
            orders = set(connection.scalars(select(Order.key)))
            effects = Counter(connection.scalars(select(Effect.job_id)))
            leases = connection.scalars(
                select(WorkerRow.id).where(WorkerRow.lease_until > clock.now())
            ).all()
            outcomes = Counter(connection.scalars(select(Attempt.outcome)))
        self.facts = {
            "jobs": len(states),
            **Counter(states.values()),
            **{f"attempts {name}": count for name, count in sorted(outcomes.items())},
            **self.blows,
        }
        wrong = [
            f"{key}: {state}, {effects[ids[key]]} effects"
            for key, state in states.items()
            if effects[ids[key]] != (state == "succeeded")
        ]
        locked = [
            line
            for output in self.outputs
            for line in output.splitlines()
            if "database is locked" in line
        ]
        return {
            "every job whose commit a producer saw exists": sorted(
                committed - states.keys()
            ),
            "no job of a rolled-back transaction exists": sorted(never & states.keys()),
            "an order and its job exist together or not at all": sorted(
                orders ^ states.keys()
            ),
            "each success has its effect exactly once, and nothing else has one": wrong,
            'nobody meets "database is locked"': locked,
            "no worker is left with a lease": [str(each) for each in leases],
        }


def show(chaos: Chaos, rules: dict[str, list[str]], console: Console) -> bool:
    """Print what happened; return whether all rules hold."""
    facts = Table(title="What happened")
    facts.add_column("")
    facts.add_column("", justify="right")
    for name, count in chaos.facts.items():
        facts.add_row(name, f"{count:,}")
    console.print(facts)
    for says, broken in rules.items():
        console.print(f"{'NO ' if broken else 'yes'} {says}")
        for each in broken[:5]:
            console.print(f"      {each}")
    return not any(rules.values())
