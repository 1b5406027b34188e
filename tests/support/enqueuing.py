"""Jobs for the tests of enqueue, and what other connections see of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from sqla_jobs import NO_TENANT, Jobs
from sqla_jobs.models import Job, JobBody
from tests.support.shop import Order

jobs = Jobs()


@attrs.frozen
class Work:
    """An input that names its own key."""

    key: str
    n: int = 0


work = jobs.declare(
    "shop.work",
    input=Work,
    output=int,
    idempotency_key=lambda i: i.key,
    tenant=NO_TENANT,
)
other = jobs.declare(
    "shop.other",
    input=Work,
    output=int,
    idempotency_key=lambda i: i.key,
    tenant=lambda i: i.n,
    queue="other",
    priority=1,
)


def keys(engine: Engine) -> list[str]:
    """Return the keys of all committed jobs, as a new connection sees them."""
    with engine.connect() as connection:
        return sorted(connection.scalars(select(Job.key)))


def orders(engine: Engine) -> list[int]:
    """Return the ids of all committed orders, as a new connection sees them."""
    with engine.connect() as connection:
        return sorted(connection.scalars(select(Order.id)))


def stored(engine: Engine, key: str) -> Job:
    """Return the committed job with *key*, its input loaded."""
    with Session(engine) as session:
        job = session.scalars(select(Job).where(Job.key == key)).one()
        assert job.input is not None
        session.expunge_all()
        return job


def bodies(engine: Engine) -> int:
    """Count the committed inputs: as many as jobs, always."""
    with engine.connect() as connection:
        return len(connection.scalars(select(JobBody.job_id)).all())


def borrow_and_commit(engine: Engine) -> None:
    """Be the next borrower of *engine*'s pool: what was left open is committed now."""
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        connection.commit()


@contextmanager
def nothing_lasts(engine: Engine, second_engine: Engine) -> Iterator[None]:
    """Assert that what is inside leaves neither jobs nor orders behind.

    Seen through *second_engine* after the next borrower of *engine*'s pool committed.
    """
    before = keys(second_engine), orders(second_engine)
    yield
    borrow_and_commit(engine)
    assert (keys(second_engine), orders(second_engine)) == before
    assert bodies(second_engine) == len(before[0])
