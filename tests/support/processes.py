"""Processes that tests kill, freeze and thaw; always reaped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]

# The entry point of the distribution, in this interpreter: it need not be installed.
START = "import sys; from sqla_jobs.cli import main; sys.argv[0] = 'sqla-jobs'; main()"
COMMAND_LINE = ("-c", START)


class Child:
    """A running process, the leader of its own process group.

    Its output is read as it comes: :meth:`wait_for_line` waits for what it says.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path = ROOT
    ) -> None:
        self.command = list(command)
        self._lines: list[str] = []
        # A group of its own: signals reach the processes that it starts, and a
        # Ctrl-C in the terminal goes to the tests only, which then reap it.
        self._popen = subprocess.Popen(
            self.command,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.append(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        """The operating system's number of the process."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._popen.poll()

    @property
    def lines(self) -> list[str]:
        """What it has printed so far, errors included."""
        return list(self._lines)

    @property
    def output(self) -> str:
        """All lines so far as one text, for messages."""
        return "\n".join(self._lines)

    def wait_for_line(self, pattern: str, timeout: float = 20.0) -> re.Match[str]:
        """Wait until a line matches *pattern* (searched), and return the match."""
        compiled = re.compile(pattern)

        def found() -> re.Match[str] | None:
            ended = self.returncode is not None
            if ended:
                self._reader.join()
            match = next(filter(None, map(compiled.search, self.lines)), None)
            if match is None and ended:
                msg = f"ended ({self.returncode}) before {pattern!r}:\n{self.output}"
                raise AssertionError(msg)
            return match

        match = wait_until(found, timeout, what=f"a line {pattern!r}")
        assert match is not None
        return match

    def kill(self) -> None:
        """Kill the process and those it started, as an out-of-memory killer does."""
        self.signal_group(signal.SIGKILL)
        self._popen.wait()

    def freeze(self) -> None:
        """Stop it where it stands, and wait until the kernel says it is stopped."""
        self.signal_group(signal.SIGSTOP)
        wait_until(self._is_frozen, what=f"process {self.pid} frozen")

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self.signal_group(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask the leader to shut down (SIGTERM); does not wait."""
        self._popen.terminate()

    def interrupt(self) -> None:
        """Ask the leader to shut down (SIGINT); does not wait."""
        self._popen.send_signal(signal.SIGINT)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for the end and return the exit code; all output is read by then."""
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            msg = f"still running after {timeout:g} s:\n{self.output}"
            raise AssertionError(msg) from None
        self._reader.join(timeout)
        return code

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and to those it started."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return  # It has ended and was reaped.

    def reap(self) -> None:
        """End it whatever state it is in, and close what it was read through."""
        self.signal_group(signal.SIGKILL)  # Ends frozen processes too.
        self._popen.wait()
        self._reader.join()
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                stream.close()

    def _is_frozen(self) -> bool:
        import psutil

        return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)


class Processes:
    """Starts children, and reaps them all at the end of the test."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = dict(env or {})
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.reap()

    def release(self, child: Child) -> None:
        """Reap *child* now; for tests that start more processes than may stay open."""
        self._children.remove(child)
        child.reap()

    def call(
        self,
        function: str | Callable[..., object],
        *arguments: Any,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Run a module-level function (or ``module:name``) in a new interpreter.

        Its arguments travel as JSON. It is ended when this process ends.
        """
        if not isinstance(function, str):
            function = f"{function.__module__}:{function.__qualname__}"
        packed = json.dumps(arguments)
        return self.python("-m", "tests.support.child", function, packed, env=env)

    def python(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> Child:
        """Run this interpreter with *arguments*, in the project's folder or *cwd*."""
        command = [sys.executable, *arguments]
        child = Child(command, {**self._env, **(env or {})}, cwd)
        self._children.append(child)
        return child

    def sqla_jobs(self, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        """Run the command line: ``sqla-jobs`` with *arguments*."""
        return self.python(*COMMAND_LINE, *arguments, env=env)
