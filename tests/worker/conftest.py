"""What tests of running workers share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import URL, Engine, create_engine, func, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import Jobs, JobSession, JobSpec, Worker
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.models import Attempt, Job
from tests.support.processes import Child, Processes
from tests.support.shop import Order, Visit
from tests.support.waiting import wait_until
from tests.worker import app


class Queue:
    """What a test does to the queue, and what it sees there: committed facts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sessions = sessionmaker(engine, class_=JobSession)
        self.look = engine.execution_options(isolation_level="AUTOCOMMIT")

    def add(self, spec: JobSpec[Any, Any], *names: str, **more: Any) -> list[UUID]:
        """Enqueue one job of *spec* per name, in one transaction; return their ids."""
        seconds = more.pop("seconds", 0.0)
        with self.sessions.begin() as session:
            handles = [
                session.enqueue(spec, app.Do(name, seconds), **more) for name in names
            ]
        return [handle.id for handle in handles]

    def go(self, name: str = "go") -> None:
        """Let jobs that wait go on."""
        with self.sessions.begin() as session:
            session.add(Order(org_id=1, note=name))

    def visits(self, *names: str) -> list[tuple[str, int]]:
        """Return name and attempt of every visit (of *names*), in order."""
        query = select(Visit.name, Visit.attempt).order_by(Visit.id)
        if names:
            query = query.where(Visit.name.in_(names))
        with Session(self.look) as session:
            return [tuple(row) for row in session.execute(query)]

    def wait_for_visits(self, count: int, timeout: float = 20.0) -> None:
        """Wait until *count* visits are committed."""
        wait_until(lambda: len(self.visits()) >= count, timeout, what=f"{count} visits")

    def job(self, job_id: UUID) -> Job:
        """Read a job."""
        with Session(self.look) as session:
            return session.get_one(Job, job_id)

    def states(self) -> dict[str, int]:
        """Count jobs by state."""
        query = select(Job.state, func.count()).group_by(Job.state)
        with Session(self.look) as session:
            return dict(tuple(row) for row in session.execute(query))

    def wait_for_states(self, timeout: float = 30.0, **states: int) -> None:
        """Wait until the counts by state are exactly *states*."""
        seen: dict[str, int] = {}

        def reached() -> bool:
            nonlocal seen
            seen = self.states()
            return seen == states

        try:
            wait_until(reached, timeout)
        except AssertionError:
            msg = f"{states} not within {timeout:g} s: {seen}"
            raise AssertionError(msg) from None

    def attempts(self, job_id: UUID) -> list[Attempt]:
        """Read a job's history, oldest first."""
        query = select(Attempt).where(Attempt.job_id == job_id)
        with Session(self.look) as session:
            return list(session.scalars(query.order_by(Attempt.fence)))

    def history(self, job_id: UUID) -> list[str]:
        """Return the outcomes of a job's ended attempts."""
        return [attempt.outcome for attempt in self.attempts(job_id)]


def _handlers() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("sqla-jobs-handler")]


@pytest.fixture
def queue(engine: Engine, env: Mapping[str, str], monkeypatch) -> Iterator[Queue]:
    """The queue of the test's database; jobs of the app find it as well."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    app.side.cache_clear()
    yield Queue(engine)
    # A handler that was given up may still be on its way back.
    wait_until(lambda: not _handlers(), what="handlers back")
    if app.side.cache_info().currsize:
        app.side().dispose()
    app.side.cache_clear()


@pytest.fixture
def start(url: URL, async_url: URL) -> Iterator[Callable[..., Worker]]:
    """Start workers beside the test; all are stopped at its end."""
    with ExitStack() as stack:

        def start(jobs: Jobs = app.jobs, **options: Any) -> Worker:
            if "session" not in options:
                engine = create_engine(url)
                stack.callback(engine.dispose)
                options["session"] = sessionmaker(engine, class_=JobSession)
            if "async_session" not in options:
                async_engine = create_async_engine(async_url)
                stack.callback(lambda: asyncio.run(async_engine.dispose()))
                options["async_session"] = async_sessionmaker(
                    async_engine, class_=AsyncJobSession
                )
            options = {"grace": "1s", **options}
            return stack.enter_context(Worker(jobs, **options))

        yield start


@pytest.fixture
def spawn(processes: Processes, queue: Queue) -> Callable[..., Child]:
    """Start workers in processes of their own; returns when their lease is taken."""

    def spawn(*, wait: bool = True, **options: Any) -> Child:
        child = processes.call(app.run_worker, {"grace": "1s", **options})
        if wait:
            child.wait_for_line("worker .* started")
        return child

    return spawn
