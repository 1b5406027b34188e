"""What was done to the processes, and what they said."""

from __future__ import annotations

import json
import re
from collections import Counter

from tests.chaos.faults import REFUSED
from tests.chaos.worker import STATS

STALE = re.compile(
    r"an outcome of (?P<name>\S+) (?P<id>\S+) \(attempt \d+, fence (?P<fence>\d+)\)"
    r" was refused"
)
TROUBLE = ("Fatal Python error", "Exception in thread", "Exception ignored")


class Tally:
    """Counts over all processes of a run, dead ones included."""

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()
        self.blows: Counter[str] = Counter()
        self.faults: Counter[tuple[str, str]] = Counter()
        """By point and action: what processes did to themselves."""
        self.freezes = 0
        self.fatal_freezes = 0
        self.refused: Counter[str] = Counter()
        """Stale writes that reached the database, by step."""
        self.stale: list[tuple[str, int]] = []
        """``(job id, fence)`` of each refused outcome that a worker has logged."""
        self.violations: list[str] = []
        self._stats: dict[str, dict[str, float]] = {}
        self._sum: Counter[str] = Counter()

    def listen(self, who: str, line: str) -> None:
        """Take one line that the process *who* has printed."""
        if line.startswith(STATS):
            self._stats[who] = json.loads(line.removeprefix(STATS))
        elif line.startswith(REFUSED):
            self.refused[line.removeprefix(REFUSED).strip()] += 1
        elif match := STALE.search(line):
            self.stale.append((match["id"], int(match["fence"])))
        elif any(word in line for word in TROUBLE):
            self.violations.append(f"{who} said: {line}")

    def ended(self, who: str) -> None:
        """Add up what the process *who* has counted; it counts no more."""
        stats = self._stats.pop(who, {})
        self._sum.update({name: int(value) for name, value in stats.items()})

    @property
    def stats(self) -> Counter[str]:
        """The sums of what the workers counted; a kill hides its last moments."""
        return self._sum
