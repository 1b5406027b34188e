"""Exactly once: the worker that the page started books the payment, once."""

from shop.jobs import Book, Payment, Session, book
from sqlalchemy import func, select

from sqla_jobs import find_job
from tests.support.waiting import wait_until


def state() -> bool:
    with Session() as look:
        found = find_job(look, book, Book(order_id=1))
        return found is not None and found.state == "succeeded"


wait_until(state, 30)
with Session() as look:
    assert look.scalar(select(func.count(Payment.id))) == 1
