"""Tutorial 3: all three jobs come to their end."""

from shop.db import Session
from sqlalchemy import func, select

from sqla_jobs.models import Job
from tests.support.waiting import wait_until


def ended() -> bool:
    with Session() as look:
        return look.scalar(select(func.count(Job.finished_at))) == 3


wait_until(ended, 30)
