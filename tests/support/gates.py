"""Gates: stop a statement of the library in the middle of its own execution.

The statement is made to take an advisory lock at a marked place; whoever holds that
lock decides when it goes on. So an interleaving is forced, not hoped for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, event

from tests.support.waiting import wait_for_lock

T = TypeVar("T")

KEY = 20_261_130
PASS = f"(pg_advisory_xact_lock_shared({KEY}) is not null)"
"""A condition that is always true, once the gate is open."""


class Background(Generic[T]):
    """A call in a thread; its result, or its error, comes with :meth:`result`."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._function())
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return not self._thread.is_alive()

    def result(self, timeout: float = 20.0) -> T:
        """Wait for the end and return what the call returned; raise what it raised."""
        self._thread.join(timeout)
        assert self.done, f"still running after {timeout:g} s"
        if self._error is not None:
            raise self._error
        return self._answer[0]


@contextlib.contextmanager
def gate(engine: Engine, place: str, replacement: str) -> Iterator[Callable[[], None]]:
    """Shut a gate in statements of *engine* that contain *place*; yield its opener.

    *place* is replaced, once per statement, by *replacement*, in which ``{gate}`` is the
    condition that waits. The gate is opened at the end in any case.
    """
    used: list[str] = []

    def listen(
        connection: Connection,
        cursor: object,
        statement: str,
        parameters: Any,
        *rest: object,
    ) -> tuple[str, Any]:
        if place in statement:
            used.append(statement)
            statement = statement.replace(place, replacement.format(gate=PASS), 1)
        return statement, parameters

    with engine.connect() as keeper:
        keeper.exec_driver_sql(f"select pg_advisory_lock({KEY})")
        keeper.commit()

        def open_() -> None:
            keeper.exec_driver_sql(f"select pg_advisory_unlock({KEY})")
            keeper.commit()

        event.listen(engine, "before_cursor_execute", listen, retval=True)
        try:
            yield open_
        finally:
            event.remove(engine, "before_cursor_execute", listen)
            keeper.exec_driver_sql("select pg_advisory_unlock_all()")
            keeper.commit()
    assert used, f"no statement had {place!r}"


def stopped(engine: Engine, call: Callable[[], T], *, count: int = 1) -> Background[T]:
    """Start *call* in a thread and wait until the server says that it waits.

    :param count: how many backends wait then, this one included.
    """
    background = Background(call)
    wait_for_lock(engine, count=count)
    return background


BEFORE_CLAIM_LOCKS = (
    "and queue = q.queue and priority = p.priority",
    "and queue = q.queue and priority = p.priority and {gate}",
)
"""In a claim: its snapshot is taken, no row is locked yet."""

BEFORE_RESCUE_LOCKS = (
    "where s.state = 'running'",
    "where s.state = 'running' and {gate}",
)
"""In a rescue: its snapshot is taken, no row is locked yet."""

AFTER_RESCUE_LOCKS = (
    "where j.id = p.id and j.fence = p.held",
    "where j.id = p.id and p.held is not null and {gate} and j.fence = p.held",
)
"""In a rescue: the rows are locked, none is changed yet."""

BEFORE_SETTLE_LOCKS = (
    "order by id for update skip locked",
    "and {gate} order by id for update skip locked",
)
"""In a settle: its snapshot is taken, no row is locked yet."""
