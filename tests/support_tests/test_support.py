"""The helpers keep their own promises."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

import psutil
import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session as PlainSession

from tests.support.shop import Order
from tests.support.waiting import wait_for_lock, wait_until

pytestmark = pytest.mark.conformance


def freeze_here() -> None:
    print("here", os.getpid(), flush=True)
    signal.pause()


def add(left: int, right: int) -> None:
    print("sum", left + right)


@pytest.mark.needs("server")
def test_each_test_has_a_database_of_its_own(engine, second_engine):
    with PlainSession(engine) as session, session.begin():
        session.add(Order(id=1, org_id=1, note="here"))
    with PlainSession(second_engine) as session:
        assert session.scalars(select(Order.note)).all() == ["here"]
    other = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    with second_engine.connect() as connection:
        assert connection.scalar(text(other)) == 2


def test_and_its_neighbour_sees_nothing_of_it(engine):
    with PlainSession(engine) as session:
        assert session.scalars(select(Order)).all() == []


def test_an_async_engine_is_closed_after_its_loop(async_engine):
    async def ask() -> object:
        async with async_engine.connect() as connection:
            return await connection.scalar(text("SELECT 1"))

    assert asyncio.run(ask()) == 1


@pytest.mark.needs("server")
def test_a_lock_wait_is_observed_not_guessed(engine):
    with PlainSession(engine) as session, session.begin():
        session.add(Order(id=1, org_id=1))
    holder, waiter = engine.connect(), engine.connect()
    holder.execute(text("UPDATE shop_order SET org_id = 2"))
    pid = waiter.scalar(text("SELECT pg_backend_pid()"))
    update = text("UPDATE shop_order SET org_id = 3")
    thread = threading.Thread(target=waiter.execute, args=(update,))
    thread.start()
    assert wait_for_lock(engine, pid=pid) == [pid]
    holder.rollback()
    thread.join()
    waiter.close()
    holder.close()
    with pytest.raises(AssertionError, match="waiting for a lock"):
        wait_for_lock(engine, timeout=0.05)


def test_a_child_is_frozen_thawed_and_killed(processes):
    child = processes.call(freeze_here)
    pid = int(child.wait_for_line(r"here (\d+)")[1])
    assert pid == child.pid
    child.freeze()
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    child.thaw()
    wait_until(lambda: psutil.Process(pid).status() != psutil.STATUS_STOPPED)
    child.kill()
    assert child.returncode == -signal.SIGKILL


def test_a_childs_arguments_travel_and_its_end_is_told(processes):
    child = processes.call(add, 2, 3)
    assert child.wait() == 0
    assert child.lines == ["sum 5"]
    broken = processes.call("tests.support_tests.test_support:missing")
    with pytest.raises(AssertionError, match="before 'ready'"):
        broken.wait_for_line("ready")


def test_a_child_ends_with_the_process_that_started_it(processes, env):
    starts = (
        "import os, sys, signal\n"
        "from tests.support.processes import Processes\n"
        "from tests.support_tests.test_support import freeze_here\n"
        "child = Processes().call(freeze_here)\n"
        "child.wait_for_line('here')\n"
        "print('grandchild', child.pid, flush=True)\n"
        "signal.pause()\n"
    )
    parent = processes.python("-c", starts)
    grandchild = int(parent.wait_for_line(r"grandchild (\d+)")[1])
    parent.kill()
    wait_until(lambda: not psutil.pid_exists(grandchild), what="grandchild gone")


def test_python_of_the_tests_is_the_python_of_the_children(processes):
    child = processes.python("-c", "import sys; print(sys.executable)")
    child.wait()
    assert child.lines == [sys.executable]
