"""What happens to the server: it crashes and restarts, or ends a session."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from tests.chaos.plan import Plan
from tests.chaos.tables import PRODUCER, STEWARD, WORKER
from tests.chaos.tally import Tally
from tests.support.server import Control

# Of workers twice as often as of all others; whichever connection of theirs it is.
KILL = text(
    """select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and application_name = any(:names)
        order by random() limit 1"""
)
VICTIMS = ((WORKER,), (WORKER,), (PRODUCER, STEWARD))


@contextmanager
def surviving(plan: Plan) -> Iterator[None]:
    """Go on after a lost connection, where the plan has any; what was done is unknown."""
    try:
        yield
    except DBAPIError:
        if not plan.cuts_connections:
            raise
        time.sleep(0.1)


class Outages:
    """Strikes the server when it is time to."""

    def __init__(
        self, plan: Plan, engine: Engine, control: Control | None, tally: Tally
    ) -> None:
        assert control is not None or not plan.between_restarts
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._control = control
        self._tally = tally
        self._chance = plan.chance("outages")
        self._strikes: list[_Strike] = [
            _Strike(mean, do, self._chance)
            for mean, do in (
                (plan.between_restarts, self._restart),
                (plan.between_kills, self._kill),
            )
            if mean
        ]

    def step(self) -> None:
        """Strike, if it is time to."""
        for strike in self._strikes:
            strike.step()

    def _restart(self) -> None:
        assert self._control is not None
        self._control.restart("immediate")
        self._tally.blows["server restart"] += 1

    def _kill(self) -> None:
        names = list(self._chance.choice(VICTIMS))
        with self._engine.connect() as connection:
            killed = connection.execute(KILL, {"names": names}).rowcount
        self._tally.blows["session kill"] += killed


class _Strike:
    """One kind of strike, at random times."""

    def __init__(
        self, mean: float, do: Callable[[], None], chance: random.Random
    ) -> None:
        self._mean = mean
        self._do = do
        self._chance = chance
        self._at = time.monotonic() + mean

    def step(self) -> None:
        if time.monotonic() >= self._at:
            self._do()
            self._at = time.monotonic() + self._chance.expovariate(1 / self._mean)
