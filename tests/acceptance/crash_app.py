"""The application and the worker processes of the crash tests.

A job says what it does on standard output, and waits where a test wants it to: for a
file, the *gate*, that the test makes. What a job has done stays as a ``Visit``, of which
any number may have one name: what happened twice is there twice.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import attrs
from sqlalchemy import create_engine, update
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import (
    NO_TENANT,
    JobContext,
    Jobs,
    JobSession,
    JobSpec,
    Retry,
    Snooze,
    Worker,
    constant,
)
from sqla_jobs.dialects.postgresql import PostgreSQLDialect
from sqla_jobs.worker import rescuer
from tests.chaos.faults import die, freeze, say
from tests.support.shop import Order, Visit

jobs = Jobs()

LONGEST_WAIT = 60.0
TTL = "1500ms"
DOORS = 20
"""Queues with one job each, for processes that die with one job each."""


@attrs.frozen
class Task:
    """The input of every job: what it is called, and the gate it waits for."""

    key: str
    gate: str = ""
    order: int = 0


def job(name: str, *, queue: str = "default", attempts: int = 5) -> Any:
    """Declare a job of these tests."""
    return jobs.job(
        f"crash.{name}",
        input=Task,
        idempotency_key=lambda task: task.key,
        tenant=NO_TENANT,
        queue=queue,
        retry=Retry(attempts=attempts, backoff=constant("50ms")),
    )


def pass_gate(ctx: JobContext, task: Task) -> None:
    """Say that this attempt is inside; let the first one wait until the gate is open."""
    say(f"{task.key} inside {ctx.attempt}")
    until = time.monotonic() + LONGEST_WAIT
    while ctx.attempt == 1 and task.gate and not Path(task.gate).exists():
        if time.monotonic() > until:
            raise TimeoutError(task.gate)
        time.sleep(0.005)


def rename(ctx: JobContext, task: Task) -> None:
    """Update a row that every attempt updates, and leave a visit; not committed yet."""
    ctx.session.execute(
        update(Order)
        .where(Order.id == task.order)
        .values(note=f"{task.key} {ctx.attempt}")
    )
    ctx.session.add(Visit(name=task.key, attempt=ctx.attempt))
    ctx.session.flush()


@job("write")
def write(ctx: JobContext, task: Task) -> None:
    """Write, then be committed with the completion."""
    rename(ctx, task)
    pass_gate(ctx, task)
    say(f"{task.key} leaves {ctx.attempt}")


@job("commit")
def commit(ctx: JobContext, task: Task) -> None:
    """Write, then commit by itself, and say what that raised."""
    rename(ctx, task)
    pass_gate(ctx, task)
    try:
        ctx.session.commit()
    except BaseException as error:
        say(f"{task.key} refused {type(error).__name__}")
        raise


@job("write_late")
def write_late(ctx: JobContext, task: Task) -> None:
    """Touch the session only after the gate, and say what the commit raised."""
    pass_gate(ctx, task)
    try:
        rename(ctx, task)
        ctx.session.commit()
    except BaseException as error:
        say(f"{task.key} refused {type(error).__name__}")
        raise


@job("answer")
def answer(ctx: JobContext, task: Task) -> int:
    """Return a value, without a session."""
    pass_gate(ctx, task)
    return ctx.attempt


@job("fail")
def fail(ctx: JobContext, task: Task) -> None:
    """Fail the first time."""
    pass_gate(ctx, task)
    if ctx.attempt == 1:
        raise ValueError(task.key)


@job("snooze")
def snooze(ctx: JobContext, task: Task) -> None:
    """Ask the first time to be run much later."""
    pass_gate(ctx, task)
    if ctx.attempt == 1:
        raise Snooze("1h")


@job("visit")
def visit(ctx: JobContext, task: Task) -> None:
    """Leave a visit; the first attempt waits for the gate, having written it."""
    ctx.session.add(Visit(name=task.key, attempt=ctx.attempt))
    ctx.session.flush()
    pass_gate(ctx, task)


@job("poison", attempts=3)
def poison(ctx: JobContext, task: Task) -> None:
    """Take the process along."""
    say(f"{task.key} runs {ctx.attempt}")
    die()


@job("poison_once", attempts=1)
def poison_once(ctx: JobContext, task: Task) -> None:
    """The same, with a single attempt."""
    say(f"{task.key} runs {ctx.attempt}")
    die()


def _visit_in(queue: str, attempts: int) -> JobSpec[Task, None]:
    def handler(ctx: JobContext, task: Task) -> None:
        ctx.session.add(Visit(name=task.key, attempt=ctx.attempt))

    spec: JobSpec[Task, None] = job(f"in_{queue}", queue=queue, attempts=attempts)(
        handler
    )
    return spec


doors = [_visit_in(f"door{number}", attempts=5) for number in range(DOORS)]
last_door = _visit_in("last", attempts=2)


# --- processes -----------------------------------------------------------------------------


def serve(
    queues: dict[str, int],
    prefetch: int | None = None,
    ttl: str = TTL,
    quick_rescue: bool = True,
) -> None:
    """Run a worker until SIGTERM, then say what it has counted.

    :param quick_rescue: look for what is to be rescued twice a second, with half a
     second of grace: the defaults suit a lease of half a minute.
    """
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    if quick_rescue:
        vars(rescuer).update(INTERVAL=0.5, GRACE=timedelta(seconds=0.5))
    engine = create_engine(
        os.environ["SQLA_JOBS_DATABASE_URL"], pool_size=sum(queues.values())
    )
    worker = Worker(
        jobs,
        session=sessionmaker(engine, class_=JobSession),
        queues=queues,
        lease_ttl=ttl,
        grace="1s",
        poll_interval="200ms",
        prefetch=prefetch,
    )
    worker.run()
    say(f"stats {json.dumps(attrs.asdict(worker.stats))}")


def freeze_after(step: str, queues: dict[str, int]) -> None:
    """Run a worker that freezes inside the first *step* that does something."""

    def frozen(result: object) -> None:
        say(f"frozen after {step}")
        freeze()

    _after(step, frozen)
    serve(queues)


def die_with_claim(queues: Sequence[str]) -> None:
    """Run a worker for each queue in turn that dies between claim and start.

    Forked, not started afresh: each is an image of this process, which has imported
    everything and started nothing.
    """

    def claimed(result: object) -> None:
        die()

    for queue in queues:
        pid = os.fork()
        if pid == 0:
            _after("claim", claimed)
            serve({queue: 1}, prefetch=0)
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        say(f"{queue} ended with {os.waitstatus_to_exitcode(status)}")


def _after(step: str, act: Callable[[object], None]) -> None:
    """Call *act* once *step* of the dialect has answered something true."""
    inner = getattr(PostgreSQLDialect, step)

    @wraps(inner)
    def outer(*args: Any, **kw: Any) -> Any:
        result = inner(*args, **kw)
        if result:
            act(result)
        return result

    setattr(PostgreSQLDialect, step, outer)


def order_of(session: Session, number: int) -> str | None:
    """Return the note of an order, read anew."""
    order = session.get_one(Order, number, populate_existing=True)
    return order.note
