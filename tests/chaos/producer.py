"""A producer process: business transactions that enqueue, and a journal of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import sessionmaker

from sqla_jobs import Enqueued, JobSession, JobSpec, OnDuplicate
from sqla_jobs.exc import DuplicateJobError
from sqla_jobs.models import Job
from sqla_jobs.states import FINISHED
from tests.chaos.faults import PRODUCER, Faults, install
from tests.chaos.journal import COMMITTED, ROLLED_BACK, WRONG, Journal
from tests.chaos.kinds import DEADLY, WEIGHTS, Work, entry, jobs, killer, transfer
from tests.chaos.outage import surviving
from tests.chaos.plan import Plan
from tests.chaos.tables import PRODUCER as PRODUCER_NAME
from tests.chaos.tables import Order, Request, application

MODES: tuple[OnDuplicate, ...] = ("keep", "replace", "rerun", "error")
SHARED = "shared:"
SHARED_KEYS = 40


class TurnBackError(Exception):
    """The business does not want this transaction after all."""


def produce(packed: dict[str, Any], number: int, generation: int) -> None:
    """Enqueue until it is calm."""
    plan = Plan.unpacked(packed)
    chance = plan.chance("producer", number, generation)
    install(Faults(plan, chance, PRODUCER))
    engine, session = application(PRODUCER_NAME)
    producer = Producer(plan, session, chance, f"p{number}.{generation}")
    while not plan.is_calm:
        with surviving(plan):
            producer.step()
    engine.dispose()


class Producer:
    """Makes one transaction per step."""

    def __init__(
        self,
        plan: Plan,
        session: sessionmaker[JobSession],
        chance: random.Random,
        name: str,
    ) -> None:
        self._plan = plan
        self._session = session
        self._chance = chance
        self._name = name
        self._journal = Journal(plan.journal(name))
        self._count = 0
        self._known: list[tuple[JobSpec[Work, Any], str]] = []
        self._steps: dict[Callable[[], None], float] = {
            self.commit: 8,
            self.commit_many: 0.5,
            self.roll_back: 2,
            self.roll_back_savepoint: 1.5,
            self.repeat: 3,
            self.race: 2,
        }

    def step(self) -> None:
        """Wait while there is enough to do; then one transaction."""
        if self._count % 10 == 0:
            self._wait_for_workers()
        self._count += 1
        [do] = self._chance.choices([*self._steps], [*self._steps.values()])
        do()
        time.sleep(self._chance.uniform(0.0, 0.1))

    # --- transactions ----------------------------------------------------------------

    def commit(self) -> None:
        """A few business rows, each with its job."""
        new = [self._new() for _ in range(self._chance.randint(1, 3))]
        with self._session.begin() as session:
            handles = [self._add(session, *each) for each in new]
        self._committed(new, handles)

    def commit_many(self) -> None:
        """Business rows, and their jobs in one call."""
        keys = [self._key() for _ in range(8)]
        with self._session.begin() as session:
            session.add_all(Order(key=key, name=entry.name) for key in keys)
            handles = session.enqueue_many(entry, [Work(key) for key in keys])
        self._committed([(entry, key) for key in keys], list(handles))

    def roll_back(self) -> None:
        """The same, but the business turns back, early or late."""
        new = [self._new() for _ in range(2)]
        self._never(new)
        late = self._chance.random()
        try:
            with self._session.begin() as session:
                for each in new:
                    self._add(session, *each)
                if late < 0.5:
                    session.flush()
                if late < 0.25:
                    session.write_jobs()
                raise TurnBackError
        except TurnBackError:
            pass

    def roll_back_savepoint(self) -> None:
        """One job inside a savepoint that is rolled back, one outside of it."""
        inner, outer = self._new(), self._new()
        self._never([inner])
        with self._session.begin() as session:
            first = self._chance.random() < 0.5
            handles = [self._add(session, *outer)] if first else []
            savepoint = session.begin_nested()
            self._add(session, *inner)
            session.flush()
            savepoint.rollback()
            if not first:
                handles = [self._add(session, *outer)]
        self._committed([outer], handles)

    def repeat(self) -> None:
        """Enqueue something again, in any mode."""
        if not self._known:
            return
        spec, key = self._chance.choice(self._known)
        mode = self._chance.choice(MODES)
        try:
            with self._session.begin() as session:
                session.add(Request(name=spec.name, key=key, mode=mode))
                session.enqueue(spec, Work(key), on_duplicate=mode)
        except DuplicateJobError:
            if mode != "error":
                self._journal.write(WRONG, key=key, says=f"{mode} raised a duplicate")
        else:
            if mode == "error":
                self._journal.write(WRONG, key=key, says="error met no duplicate")

    def race(self) -> None:
        """Several keys that other producers enqueue too, in any order, in any mode."""
        numbers = self._chance.sample(range(SHARED_KEYS), 4)
        modes = [self._chance.choice(MODES[:3]) for _ in numbers]
        with self._session.begin() as session:
            for number, mode in zip(numbers, modes, strict=True):
                key = f"{SHARED}{number}"
                session.add(Request(name=transfer.name, key=key, mode=mode))
                session.enqueue(transfer, Work(key), on_duplicate=mode)
        for number in numbers:
            self._journal.write(COMMITTED, name=transfer.name, key=f"{SHARED}{number}")

    # --- parts of them ---------------------------------------------------------------

    def _key(self) -> str:
        self._count += 1
        return f"{self._name}.{self._count}"

    def _new(self) -> tuple[JobSpec[Work, Any], str]:
        [spec] = self._chance.choices([*WEIGHTS], [*WEIGHTS.values()])
        return spec, self._key()

    def _add(self, session: JobSession, spec: JobSpec[Work, Any], key: str) -> Enqueued:
        session.add(Order(key=key, name=spec.name))
        deaths = self._chance.randint(1, 2) if spec is killer else 0
        delayed = self._chance.random() < 0.15
        return session.enqueue(
            spec,
            Work(key, deaths),
            delay=f"{self._chance.randint(50, 1500)}ms" if delayed else None,
            priority=self._chance.choice((None, 0, 5, 9)),
        )

    def _committed(
        self, new: list[tuple[JobSpec[Work, Any], str]], handles: list[Enqueued]
    ) -> None:
        for (spec, key), handle in zip(new, handles, strict=True):
            facts = {"name": spec.name, "key": key, "id": str(handle.id)}
            self._journal.write(COMMITTED, **facts)
            if handle.outcome != "created":
                self._journal.write(WRONG, key=key, says=f"new, but {handle.outcome}")
            if spec.name not in DEADLY:
                self._known.append((spec, key))

    def _never(self, new: list[tuple[JobSpec[Work, Any], str]]) -> None:
        for spec, key in new:
            self._journal.write(ROLLED_BACK, name=spec.name, key=key)

    def _wait_for_workers(self) -> None:
        unfinished = select(func.count()).where(
            Job.state.not_in(sorted(FINISHED)), Job.name.in_([*jobs.specs])
        )
        while not self._plan.is_calm:
            with self._session() as session:
                if session.execute(unfinished).scalar_one() < self._plan.backlog:
                    return
            time.sleep(0.2)
