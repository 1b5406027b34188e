"""``--processes N``: one parent that keeps N worker processes alive.

The children are started afresh by the same command, never forked from a process with
threads. A child that crashed is started again, after a pause that grows while it keeps
crashing; one that ended by itself with 0 had a reason. Signals are passed on. A child
notices the death of its parent by a pipe whose other end only the parent holds, and
then stops gracefully.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from sqla_jobs.worker.service import jittered, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

PIPE: Final = "SQLA_JOBS_SUPERVISOR_PIPE"
"""Names, in a child's environment, the descriptor of the pipe to its parent."""
NUMBER: Final = "SQLA_JOBS_SUPERVISOR_NUMBER"
"""Tells a child which of the N it is, from 0 on; the next in its place is the same."""
LOOK: Final = 0.2
HEALTHY: Final = 30.0
"""Seconds after which a child counts as having worked."""
LONGEST_PAUSE: Final = 30.0
GIVE_UP: Final = 5
"""Starts in a row that failed at once, of a child that never worked, before we end."""


def watch_supervisor(gone: Callable[[], None]) -> None:
    """Call *gone*, from a thread, when the parent that started us has died.

    Does nothing in a process that no supervisor started.
    """
    number = os.environ.pop(PIPE, None)
    if number is None:
        return
    pipe = int(number)

    def watch() -> None:
        while os.read(pipe, 1):
            pass
        gone()

    threading.Thread(target=watch, name="sqla-jobs-parent", daemon=True).start()


def place_number() -> int:
    """Return which of its supervisor's processes this one is; 0 without a supervisor."""
    return int(os.environ.get(NUMBER, "0"))


def supervise(command: Sequence[str], processes: int) -> int:
    """Run *processes* copies of *command* until SIGTERM or SIGINT; return the exit code.

    Must be called in the main thread. A signal is passed on to all children, once per
    signal received; the return is when the last child has ended, with 0, or the code of
    a child that failed.
    """
    supervisor = Supervisor(command, processes)
    before = {
        number: signal.signal(number, supervisor.handle)
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        return supervisor.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        supervisor.close()


class _Place:
    """One of the N places, and the child that holds it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.start_at = 0.0
        self.failures = 0
        self.worked = False
        self.ended = False


class Supervisor:
    """Keeps the children alive; see :func:`supervise`."""

    def __init__(self, command: Sequence[str], processes: int) -> None:
        self._command = list(command)
        self._places = [_Place(number) for number in range(processes)]
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._stopping = False
        self._code = 0
        self._read, self._write = os.pipe()

    def handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of handlers
        """Note a signal; what follows is done by :meth:`run`."""
        self._signals.put(number)

    def run(self) -> int:
        """Start and watch the children until all have ended."""
        while not all(place.ended for place in self._places):
            for place in self._places:
                self._look_at(place)
            try:
                number = self._signals.get(timeout=LOOK)
            except Empty:
                continue
            self._stopping = True
            self._pass_on(number)
        return self._code

    def close(self) -> None:
        """Close the pipe; a child that is left sees that we are gone."""
        os.close(self._write)
        os.close(self._read)

    def _look_at(self, place: _Place) -> None:
        if place.ended:
            return
        now = time.monotonic()
        if place.child is None:
            if self._stopping:
                place.ended = True
            elif now >= place.start_at:
                self._start(place)
            return
        code = place.child.poll()
        if code is None:
            if now - place.started > HEALTHY:
                place.failures, place.worked = 0, True
            return
        self._child_ended(place, code, now)

    def _start(self, place: _Place) -> None:
        place.started = time.monotonic()
        place.child = subprocess.Popen(
            self._command,
            env={
                **os.environ,
                PIPE: str(self._read),
                NUMBER: str(place.number),
            },
            pass_fds=(self._read,),
            # A Ctrl-C goes to the whole group of the terminal: a child that got it
            # from there and from us would take it for two, and skip its grace.
            process_group=0,
        )
        logger.info("worker process %d started", place.child.pid)

    def _child_ended(self, place: _Place, code: int, now: float) -> None:
        child, place.child = place.child, None
        assert child is not None  # noqa: S101 - it has just ended
        if code == 0 or self._stopping:
            logger.info("worker process %d ended (%d)", child.pid, code)
            place.ended = True
            self._code = self._code or code
            return
        place.failures += 1
        if place.failures >= GIVE_UP and not place.worked and code > 0:
            logger.error(
                "worker processes end with %d as soon as they start: giving up", code
            )
            self._code, self._stopping = code, True
            place.ended = True
            self._pass_on(signal.SIGTERM)
            return
        pause = jittered(min(0.5 * 2.0 ** (place.failures - 1), LONGEST_PAUSE))
        logger.warning(
            "worker process %d ended (%d): the next one starts in %.1f s",
            child.pid,
            code,
            pause,
        )
        place.start_at = now + pause

    def _pass_on(self, number: int) -> None:
        for place in self._places:
            if place.child is not None and place.child.poll() is None:
                place.child.send_signal(number)
