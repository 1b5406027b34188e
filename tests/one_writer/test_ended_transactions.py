"""The transaction of a lost attempt is ended from another thread, past no fence."""

from __future__ import annotations

import sqlite3
import threading

import pytest
from sqlalchemy import create_engine, func, insert, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sqla_jobs.worker.borrowed import Backends, Borrowed
from tests.support.shop import Order


class LostError(Exception):
    """What the attempt was ended with."""


class Moments:
    """When the handler's statement runs, and what the other thread did meanwhile."""

    def __init__(self):
        self.enders = []
        self.executing = False
        self.interrupted = threading.Event()
        self.rolled_back_while_executing = []


def connection_class(moments):
    class Cursor(sqlite3.Cursor):
        def execute(self, *arguments):
            if not moments.enders or not arguments[0].startswith("INSERT"):
                return super().execute(*arguments)
            # Between the driver's BEGIN and the statement: the other thread is at work.
            moments.executing = True
            moments.enders.pop().start()
            assert moments.interrupted.wait(10)
            try:
                return super().execute(*arguments)
            finally:
                moments.executing = False

    class Connection(sqlite3.Connection):
        def cursor(self, factory=Cursor):
            return super().cursor(factory)

        def interrupt(self):
            super().interrupt()
            moments.interrupted.set()

        def rollback(self):
            if threading.current_thread().name == "ender":
                moments.rolled_back_while_executing.append(moments.executing)
            super().rollback()

    return Connection


@pytest.mark.parametrize("goes_on", [False, True])
def test_nothing_of_it_is_executed_or_committed_after_that(tmp_path, goes_on):
    """The driver begins and executes in two steps: a rollback in between would let the
    statement commit by itself."""
    moments = Moments()
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url, connect_args={"factory": connection_class(moments)})
    Order.metadata.create_all(engine)
    other = create_engine(url)
    borrowed = Borrowed(Backends(lambda: None))
    with Session(engine) as session:
        borrowed.watch(session)
        if goes_on:
            session.execute(select(Order)).all()
        ender = threading.Thread(
            target=borrowed.end, args=(LostError(), other), name="ender"
        )
        moments.enders.append(ender)
        try:
            session.execute(insert(Order).values(org_id=1, note="lost"))
        except OperationalError as error:  # It may be interrupted.
            assert "interrupted" in str(error)  # noqa: PT017
        ender.join(10)
        assert not ender.is_alive()
        with pytest.raises(LostError):
            session.connection().execute(insert(Order).values(org_id=1, note="later"))
    assert moments.rolled_back_while_executing == [False]
    with Session(other) as session:
        assert session.scalar(select(func.count()).select_from(Order)) == 0
    engine.dispose()
    other.dispose()
