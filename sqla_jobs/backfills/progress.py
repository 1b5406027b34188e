"""How far a backfill is, how fast it goes, and how long it will take.

Pure arithmetic on what is known: the rows done, the rows estimated, the time spent. The
estimate is only that: rows come and go while a backfill runs.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import attrs

HALF_LIFE: Final = 30.0
"""Seconds after which a batch counts half as much in the moving average."""
ALMOST: Final = 99.9
"""The most percent shown before the end: rows may still be found in the last look."""
LONGEST: Final = timedelta(days=3650)
"""A longer time to go says nothing; it would also leave the range of dates."""


class MovingRate:
    """Rows per second, in which the last half minute counts most.

    Rows and seconds fade together, so that the first batches are not pulled towards
    zero and a constant speed is told exactly.
    """

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self._half_life = half_life
        self._rows = 0.0
        self._seconds = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """Count a batch of *rows* that took *seconds*, its waiting included."""
        passed = max(seconds, 0.0)
        fade = 0.5 ** (passed / self._half_life)
        self._rows = self._rows * fade + max(rows, 0)
        self._seconds = self._seconds * fade + passed

    @property
    def per_second(self) -> float | None:
        """The rate; None before anything was measured."""
        return self._rows / self._seconds if self._seconds > 0 else None


@attrs.frozen
class Progress:
    """How far it is: what is counted, and what follows from it."""

    rows_done: int
    rows_estimate: int | None = None
    """All rows there were when it began, as far as anybody counted; None: nobody."""
    rows_per_second: float | None = None
    finished: bool = False

    @property
    def total(self) -> int | None:
        """All rows, done and to do; never fewer than are done."""
        if self.finished:
            return self.rows_done
        if self.rows_estimate is None:
            return None
        return max(self.rows_estimate, self.rows_done)

    @property
    def percent(self) -> float | None:
        """From 0 to 100, which only the end reaches; None where no total is known."""
        if self.finished:
            return 100.0
        total = self.total
        if total is None:
            return None
        if total == 0:
            return 0.0
        return min(100.0 * max(self.rows_done, 0) / total, ALMOST)

    @property
    def rows_left(self) -> int | None:
        """How many rows are to do; None where no total is known."""
        total = self.total
        return None if total is None else total - self.rows_done

    @property
    def eta(self) -> timedelta | None:
        """The time it takes at this speed; None where nothing tells."""
        if self.finished:
            return timedelta()
        left = self.rows_left
        if left is None or not self.rows_per_second or self.rows_per_second < 0:
            return None
        seconds = left / self.rows_per_second
        # Compared as numbers: a tiny rate gives more seconds than a timedelta holds.
        if seconds >= LONGEST.total_seconds():
            return LONGEST
        return timedelta(seconds=seconds)
