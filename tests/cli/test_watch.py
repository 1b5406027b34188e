"""``--watch``: frames in a terminal, one where there is none, 0 at Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import threading

import pytest
from sqlalchemy.orm import Session

from sqla_jobs.cli import watch
from tests.support.rows import add_job, add_worker

pytestmark = pytest.mark.each_kind


@pytest.fixture
def session(engine):
    with Session(engine) as session:
        yield session


@pytest.mark.parametrize("verb", ["queues", "workers"])
def test_without_a_terminal_one_frame_is_the_plain_table(run, session, verb):
    add_job(session, queue="billing")
    add_worker(session, host="web-1", queues={"billing": 3})
    session.commit()
    watched = run(verb, "--watch")
    assert watched.code == 0
    assert watched.out.splitlines()[0] == run(verb).out.splitlines()[0]
    assert "\x1b" not in watched.out


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *command, env):
        self.seen = ""
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sqla_jobs", *command],
            env={**os.environ, **env, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read(self):
        """Return all that was written so far."""
        while select.select([self._ours], [], [], 0)[0]:
            try:
                chunk = os.read(self._ours, 65536)
            except OSError:  # the other side is closed
                break
            if not chunk:
                break
            self.seen += chunk.decode(errors="replace")
        return self.seen

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(env):
    opened = []

    def start(*command):
        opened.append(Terminal(*command, env=env))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_a_terminal_shows_what_changes_until_ctrl_c(terminal, session, wait_until):
    add_job(session, queue="billing")
    session.commit()
    shown = terminal("queues", "--watch", "--every", "50ms")
    wait_until(lambda: "billing" in shown.read(), 20)
    assert "Ctrl-C ends" in shown.read()

    add_job(session, queue="mail")
    session.commit()
    wait_until(lambda: "mail" in shown.read(), 20)

    shown.process.send_signal(signal.SIGINT)
    wait_until(lambda: shown.process.poll() is not None, 20)
    assert shown.process.returncode == 0
    assert "Traceback" not in shown.read()


@pytest.mark.needs("server")
def test_a_database_that_is_away_is_told_and_asked_again(
    run, session, engine, monkeypatch, capsys
):
    """Whoever watches through a restart sees it begin and end."""
    from sqlalchemy import text

    add_job(session, queue="billing")
    session.commit()
    frames: list[str] = []
    waits = iter(range(9))

    class Recorded:
        def __init__(self, **options):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def update(self, group, *, refresh):
            frames.append(str(group.renderables[0]))

    class Waiting:
        def wait(self, seconds):
            turn = next(waits)
            if turn == 0:
                session.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database()"
                        " AND pid <> pg_backend_pid()"
                    )
                )
                session.rollback()
            elif turn == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(watch, "Live", Recorded)
    monkeypatch.setattr(watch, "_never", Waiting())
    monkeypatch.setattr(watch, "_on_terminal", lambda: True)
    assert run("queues", "--watch").code == 0
    first, during, after = frames
    assert "not reached" not in first
    assert "not reached" in during
    assert "not reached" not in after


def test_ctrl_c_while_it_waits_is_no_error(run, monkeypatch):
    class Pressed(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    monkeypatch.setattr(watch, "_never", Pressed())
    monkeypatch.setattr(watch, "_on_terminal", lambda: True)
    said = run("workers", "--watch")
    assert said.code == 0
    assert "Aborted" not in said.err
