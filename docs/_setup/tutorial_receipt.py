"""Tutorial 1: the worker that the page started writes the receipt."""

from shop.db import Order, Session

from tests.support.waiting import wait_until


def receipt() -> str | None:
    with Session() as look:
        return look.get_one(Order, 42).receipt


assert wait_until(receipt, 30) == "19.99 EUR"
