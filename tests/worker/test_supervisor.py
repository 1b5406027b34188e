"""``--processes N``: a parent that keeps worker processes alive."""

from __future__ import annotations

import json
import os
import signal
import sys

import psutil
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from sqla_jobs import clock
from sqla_jobs.models import WorkerRow
from sqla_jobs.worker.supervisor import supervise
from tests.support.waiting import wait_until
from tests.worker import app

pytestmark = pytest.mark.each_kind


def supervise_workers(processes: int, options: dict) -> None:
    """Run a supervisor of workers; the body of a process."""
    code = "import json, sys; from tests.worker.app import run_worker;"
    code += " run_worker(json.loads(sys.argv[1]))"
    sys.exit(supervise([sys.executable, "-c", code, json.dumps(options)], processes))


def supervise_command(processes: int, *command: str) -> None:
    """Run a supervisor of any command; the body of a process."""
    sys.exit(supervise([sys.executable, *command], processes))


@pytest.fixture
def supervisor(processes, queue):
    def start(count=2, **options):
        options = {"grace": "1s", "lease_ttl": "2s", **options}
        return processes.call(supervise_workers, count, options)

    return start


def alive(queue):
    """Return the process ids of the workers whose lease holds."""
    query = select(WorkerRow.pid).where(WorkerRow.lease_until > clock.now())
    with Session(queue.look) as session:
        return set(session.scalars(query))


def test_its_processes_share_the_work_and_end_with_it(queue, supervisor):
    parent = supervisor(2, queues={"default": 1}, prefetch=0)
    wait_until(lambda: len(alive(queue)) == 2, 20.0)
    queue.add(app.hold, "a", "b")
    queue.wait_for_visits(2)
    queue.go()
    queue.wait_for_states(succeeded=2)
    pids = alive(queue)
    parent.terminate()
    assert parent.wait() == 0
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert alive(queue) == set()


def test_a_ctrl_c_in_the_terminal_is_one_signal_for_each(queue, supervisor):
    """It reaches the whole group; twice, and running jobs would lose their grace."""
    parent = supervisor(2, grace="60s")
    wait_until(lambda: len(alive(queue)) == 2, 20.0)
    queue.add(app.deaf, "a")
    queue.wait_for_visits(1)
    parent.signal_group(signal.SIGINT)
    parent.wait_for_line("stopping: SIGINT")
    wait_until(lambda: len(alive(queue)) == 1)
    assert queue.states() == {"running": 1}
    queue.go()
    assert parent.wait() == 0
    assert queue.states() == {"succeeded": 1}


def test_a_process_that_is_killed_is_replaced(queue, supervisor):
    parent = supervisor(2)
    wait_until(lambda: len(alive(queue)) == 2, 20.0)
    victim = min(alive(queue))
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(alive(queue)) == 2 and victim not in alive(queue), 20.0)
    queue.add(app.visit, "a")
    queue.wait_for_states(succeeded=1)
    parent.interrupt()
    assert parent.wait() == 0


def test_children_stop_when_their_parent_is_killed(queue, supervisor):
    """And gracefully: the leases are ended, not left to run out."""
    parent = supervisor(2, lease_ttl="60s")
    wait_until(lambda: len(alive(queue)) == 2, 20.0)
    pids = alive(queue)
    os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: alive(queue) == set(), 20.0)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), 20.0)


def test_a_command_that_fails_at_once_is_given_up_with_its_code(processes):
    parent = processes.call(supervise_command, 2, "-c", "raise SystemExit(3)")
    assert parent.wait(60.0) == 3


def test_a_child_that_ends_by_itself_with_zero_is_not_replaced(processes):
    parent = processes.call(supervise_command, 2, "-c", "print('once', flush=True)")
    assert parent.wait(20.0) == 0
    assert parent.output.count("once") == 2
