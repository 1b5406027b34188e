"""Tutorial 3: the job that was retried succeeds."""

from shop.db import Session
from sqlalchemy import func, select

from sqla_jobs.models import Job
from tests.support.waiting import wait_until


def succeeded() -> bool:
    with Session() as look:
        query = select(func.count(Job.id)).where(Job.state == "succeeded")
        return look.scalar(query) == 2


wait_until(succeeded, 30)
