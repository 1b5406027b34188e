"""What one run of the chaos is told; handed to every process as JSON."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Self

import attrs

CALM = "calm"
JOURNALS = "journals"
LOGS = "logs"


@attrs.frozen(kw_only=True)
class Plan:
    """Sizes and times of one run; times in seconds."""

    seed: int
    seconds: float
    """How long faults go on; draining comes after."""
    folder: str
    """Journals, logs and the mark of calm go there."""
    workers: int = 4
    producers: int = 3
    lease_ttl: float = 2.5
    rescue_grace: float = 1.0
    rescue_interval: float = 1.0
    between_faults: float = 3.0
    """Mean time between two faults inside one process."""
    between_blows: float = 1.0
    """Mean time between two blows at the workers from outside."""
    between_restarts: float = 0.0
    """Mean time between two crashes of the server; 0: it stays up."""
    between_kills: float = 0.0
    """Mean time between two kills of a session in the server; 0: none."""
    backlog: int = 250
    """Unfinished jobs above which producers wait."""
    long_freezes: bool = False
    """Also freeze for longer than the server lets a holding transaction idle."""
    drain: float = 60.0
    """How long the workers have to finish everything once it is calm."""

    def packed(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return attrs.asdict(self)

    @classmethod
    def unpacked(cls, values: dict[str, Any]) -> Self:
        """Return the plan that :meth:`packed` gave."""
        return cls(**values)

    def chance(self, *who: object) -> random.Random:
        """Return the source of chance of one actor: the same for the same seed."""
        return random.Random(":".join(map(str, (self.seed, *who))))

    @property
    def fatal_freeze(self) -> float:
        """A freeze after which the lease is over and the jobs are rescued."""
        return self.lease_ttl + self.rescue_grace + 2 * self.rescue_interval

    @property
    def cuts_connections(self) -> bool:
        """Whether connections are lost without a fault of their process."""
        return self.between_restarts > 0 or self.between_kills > 0

    @property
    def is_calm(self) -> bool:
        """Whether faults and producers are to stop."""
        return self._path(CALM).exists()

    def calm(self) -> None:
        """Let faults and producers stop, in every process."""
        self._path(CALM).touch()

    def journal(self, name: str) -> Path:
        """Return where the producer *name* keeps its journal."""
        return self._path(JOURNALS) / f"{name}.jsonl"

    def journals(self) -> list[Path]:
        """Return all journals."""
        return sorted(self._path(JOURNALS).iterdir())

    def log(self, name: str) -> Path:
        """Return where the output of the process *name* is kept."""
        return self._path(LOGS) / f"{name}.log"

    def prepare(self) -> None:
        """Make the folders."""
        for name in (JOURNALS, LOGS):
            self._path(name).mkdir(parents=True, exist_ok=True)

    def _path(self, name: str) -> Path:
        return Path(self.folder) / name
