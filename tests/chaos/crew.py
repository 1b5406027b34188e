"""The crew: starts every process, deals blows to workers, starts again what has ended."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.chaos.plan import Plan
from tests.chaos.producer import produce
from tests.chaos.steward import steer
from tests.chaos.tally import Tally
from tests.chaos.worker import work
from tests.support.processes import Child, Processes

KILLED = -signal.SIGKILL
FAULT = re.compile(r"^fault (?P<action>\w+) (?P<point>\S+) (?P<seconds>[\d.]+)$")
STARTED = " started, queues "
STOPPED = "INFO stopped after "
LONGEST_STOP = 45.0
"""Seconds: all phases of a worker's shutdown together, on a busy machine."""
BETWEEN_LOSSES = 8.0
"""Mean seconds between two kills of a producer or the steward."""

ROLES: dict[str, Callable[..., None]] = {
    "worker": work,
    "producer": produce,
    "steward": steer,
}


class Member:
    """One place in the crew, and the process that holds it now."""

    def __init__(self, role: str, number: int) -> None:
        self.role = role
        self.number = number
        self.generation = 0
        self.child: Child | None = None
        self.read = 0
        self.thaw_at: float | None = None
        self.asked_at: float | None = None
        """When it was asked to stop."""
        self.up = False
        """Whether a worker is at work; before and after, SIGTERM just ends it."""

    @property
    def name(self) -> str:
        """What its log and its journal are called."""
        return f"{self.role}{self.number}.{self.generation}"


class Crew:
    """All processes of one run; everything happens in :meth:`step`."""

    def __init__(self, plan: Plan, processes: Processes) -> None:
        self._plan = plan
        self._processes = processes
        self._chance = plan.chance("crew")
        self._members = [
            *(Member("worker", number) for number in range(plan.workers)),
            *(Member("producer", number) for number in range(plan.producers)),
            Member("steward", 0),
        ]
        self._blow_at = time.monotonic() + 3.0
        self._loss_at = time.monotonic() + 5.0
        self.tally = Tally()

    def step(self) -> None:
        """Look after every member once, and perhaps strike one."""
        calm = self._plan.is_calm
        for member in self._members:
            self._look_after(member, again=member.role == "worker" or not calm)
        if not calm:
            self._strike()

    def thaw(self) -> None:
        """Let every frozen process go on."""
        for member in self._members:
            if member.thaw_at is not None:
                member.thaw_at = 0.0
        self.step()

    def stop(self) -> bool:
        """Ask every process to stop; return whether all ended in time."""
        until = time.monotonic() + LONGEST_STOP
        for member in self._running():
            self._ask(member)
        while list(self._running()) and time.monotonic() < until:
            for member in self._members:
                self._look_after(member, again=False)
            time.sleep(0.05)
        return not list(self._running())

    def idle(self) -> bool:
        """Whether every process but the workers has ended."""
        return all(member.role == "worker" for member in self._running())

    # --- one member ------------------------------------------------------------------

    def _look_after(self, member: Member, *, again: bool) -> None:
        child = member.child
        if child is None:
            if again:
                self._start(member)
            return
        ended = child.returncode
        if ended is not None:
            child.wait()  # Its last lines are read by then.
        self._listen(member, child)
        now = time.monotonic()
        if ended is not None:
            self._ended(member, child, ended)
        elif member.thaw_at is not None and now >= member.thaw_at:
            member.thaw_at = None
            child.thaw()
        elif member.asked_at is not None and now > member.asked_at + LONGEST_STOP:
            self.tally.violations.append(f"{member.name} did not stop when asked to")
            child.kill()

    def _start(self, member: Member) -> None:
        member.generation += 1
        member.read, member.up = 0, False
        member.thaw_at = member.asked_at = None
        member.child = self._processes.call(
            ROLES[member.role], self._plan.packed(), member.number, member.generation
        )
        self.tally.starts[member.role] += 1

    def _listen(self, member: Member, child: Child) -> None:
        lines = child.lines[member.read :]
        member.read += len(lines)
        for line in lines:
            if fault := FAULT.match(line):
                self.tally.faults[fault["point"], fault["action"]] += 1
                if fault["action"] == "freeze":
                    seconds = float(fault["seconds"])
                    member.thaw_at = time.monotonic() + seconds
                    self._note_freeze(seconds)
            else:
                member.up = (member.up or STARTED in line) and STOPPED not in line
                self.tally.listen(member.name, line)

    def _ended(self, member: Member, child: Child, code: int) -> None:
        asked = member.asked_at is not None or self._plan.is_calm
        if code == KILLED:
            self.tally.killed[member.role] += 1
        elif asked and (code == 0 or (code == -signal.SIGTERM and not member.up)):
            self.tally.stopped[member.role] += 1
        elif code == 1 and not member.up and self._plan.cuts_connections:
            # A worker that finds no database says so and ends: it is started again.
            self.tally.blows["start without a server"] += 1
        else:
            self.tally.violations.append(f"{member.name} ended by itself with {code}")
        self.tally.ended(member.name)
        self._plan.log(member.name).write_text(child.output + "\n")
        self._processes.release(child)
        member.child = None

    def _running(self) -> Iterator[Member]:
        return (member for member in self._members if member.child is not None)

    def _ask(self, member: Member) -> None:
        assert member.child is not None
        member.asked_at = member.asked_at or time.monotonic()
        if member.role == "worker":
            member.child.terminate()

    # --- blows -----------------------------------------------------------------------

    def _strike(self) -> None:
        now = time.monotonic()
        if now >= self._blow_at:
            mean = self._plan.between_blows
            self._blow_at = now + self._chance.expovariate(1 / mean)
            member = self._victim("worker")
            if member is not None:
                self._blow(member)
        if now >= self._loss_at:
            self._loss_at = now + self._chance.expovariate(1 / BETWEEN_LOSSES)
            member = self._victim(self._chance.choice(("producer", "steward")))
            if member is not None and member.child is not None:
                member.child.kill()

    def _victim(self, role: str) -> Member | None:
        awake = [m for m in self._running() if m.role == role and m.thaw_at is None]
        return self._chance.choice(awake) if awake else None

    def _blow(self, member: Member) -> None:
        child = member.child
        assert child is not None
        kind = self._chance.choices(
            ("kill", "freeze", "fatal freeze", "stop"), (3, 3, 1.5, 2)
        )[0]
        self.tally.blows[kind] += 1
        if kind == "kill":
            child.kill()
        elif kind == "stop":
            # Twice now and then: the second one skips a phase.
            self._ask(member)
        else:
            fatal = kind == "fatal freeze"
            longest = 2.0 if fatal else self._plan.lease_ttl / 2
            seconds = self._chance.uniform(0.1, longest)
            seconds += self._plan.fatal_freeze if fatal else 0.0
            child.signal_group(signal.SIGSTOP)
            member.thaw_at = time.monotonic() + seconds
            self._note_freeze(seconds)

    def _note_freeze(self, seconds: float) -> None:
        self.tally.freezes += 1
        self.tally.fatal_freezes += seconds >= self._plan.fatal_freeze


def summed(counts: Counter[Any]) -> int:
    """Return the sum of all *counts*."""
    return sum(counts.values())
