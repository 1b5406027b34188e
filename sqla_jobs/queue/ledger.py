"""What a Connection's transaction still owes: written by its last statement.

Pending jobs belong to a Connection. They are written just before the next SAVEPOINT,
RELEASE, PREPARE or COMMIT on it, and discarded by ROLLBACK and ROLLBACK TO. All of it
hangs on SQLAlchemy's connection events; the session's own events would not do:
``after_commit`` also fires when a savepoint is released, and a flush of a clean session
fires nothing.

**The guard.** A commit listener that raises does not roll back: SQLAlchemy marks the
transaction inactive, ``close()`` returns the connection to its pool with the
transaction still open, and the next borrower's COMMIT commits those rows. So whatever
goes wrong in a listener, the guard rolls the DBAPI connection back itself (or
invalidates it) before it lets the error through:

====================  ===============================================================
where a write failed  what the guard does, before it raises
====================  ===============================================================
COMMIT, PREPARE       rolls the DBAPI transaction back
RELEASE               rolls back to that savepoint; the outer transaction goes on
SAVEPOINT             dooms the transaction: until a rollback that covers the failure,
                      every COMMIT, PREPARE and RELEASE raises the first error
``write_jobs()``      the same, unless the error is a refusal of ours (a duplicate):
                      that one leaves the transaction usable
====================  ===============================================================

One listener per engine and event, in one order: the attempt's fence, pending jobs and
actions, the attempt's completion. Registration order of several listeners is no design:
listeners of a Connection run before those of its Engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import event

from sqla_jobs.exc import JobsError
from sqla_jobs.queue import wakeup
from sqla_jobs.queue.write import write

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

    from sqla_jobs.queue.pending import Enqueued, PendingJob


class Fence(Protocol):
    """The attempt that a transaction belongs to; see :mod:`sqla_jobs.queue.fence`."""

    @property
    def completing(self) -> bool:
        """Whether this commit shall settle the attempt."""

    def hold(self, connection: Connection) -> None:
        """Lock the job row; raise when the attempt has lost it."""

    def settle(self, connection: Connection) -> set[str]:
        """Settle the attempt in this transaction; return the queues to wake."""


class Ledger:
    """Everything that one Connection's transaction still has to write."""

    __slots__ = ("_levels", "actions", "committing", "doomed", "fence", "jobs", "wake")

    def __init__(self) -> None:
        """Start with nothing owed."""
        self.jobs: list[PendingJob] = []
        self.actions: list[Callable[[Connection], set[str]]] = []
        self.fence: Fence | None = None
        self.doomed: BaseException | None = None
        self.committing = False
        self.wake: set[str] = set()
        # Handles written so far, per open savepoint: a ROLLBACK TO unwrites them.
        self._levels: list[list[Enqueued]] = [[]]

    def flush(self, connection: Connection) -> None:
        """Write what is pending, in the order of locks: actions by id, then jobs."""
        actions, self.actions = self.actions, []
        jobs, self.jobs = self.jobs, []
        try:
            for action in actions:
                self.wake |= action(connection)
            if jobs:
                self._levels[-1].extend(job.handle for job in jobs)
                self.wake |= write(connection, jobs)
        except JobsError:
            raise
        except BaseException as error:
            # The server has aborted the transaction; a COMMIT of it would answer
            # ROLLBACK and raise nothing.
            self.doomed = error
            raise

    def before_commit(self, connection: Connection) -> None:
        """Do all that is owed before this transaction may end."""
        if self.doomed is not None:
            raise self.doomed
        self.committing = True
        fence = self.fence
        if fence is not None and (self.jobs or self.actions or not fence.completing):
            fence.hold(connection)
        self.flush(connection)
        if fence is not None and fence.completing:
            self.wake |= fence.settle(connection)

    def begin_savepoint(self, connection: Connection) -> None:
        """Write what is pending before the savepoint; it belongs to what is outside."""
        if self.doomed is not None:
            raise self.doomed
        try:
            self.flush(connection)
        except BaseException as error:
            self.doomed = error
            raise
        self._levels.append([])

    def release_savepoints(self, connection: Connection, count: int) -> None:
        """Write what is pending inside the *count* savepoints that are released."""
        if self.doomed is not None:
            raise self.doomed
        self.flush(connection)
        for _ in range(min(count, len(self._levels) - 1)):
            handles = self._levels.pop()
            self._levels[-1].extend(handles)

    def roll_back_savepoints(self, count: int) -> None:
        """Forget what was enqueued or written in the *count* innermost savepoints."""
        self._forget_pending()
        self.doomed = None
        for _ in range(count):
            # A savepoint from before our first enqueue has no level of its own: all
            # that we know of came after it, and stands in the bottom one.
            handles = self._levels.pop() if len(self._levels) > 1 else self._levels[0]
            for handle in handles:
                handle.unwritten()

    def roll_back(self) -> None:
        """Forget everything: the transaction is gone."""
        self._forget_pending()
        for handles in self._levels:
            for handle in handles:
                handle.unwritten()
        self.ended()

    def ended(self) -> None:
        """Start over after a transaction ended."""
        self._levels = [[]]
        self.doomed, self.committing = None, False
        self.wake = set()

    def _forget_pending(self) -> None:
        self.jobs.clear()
        self.actions.clear()


_ledgers: WeakKeyDictionary[Connection, Ledger] = WeakKeyDictionary()
_armed: WeakSet[Engine] = WeakSet()


def ledger_of(connection: Connection) -> Ledger:
    """Return the ledger of *connection*, arming its engine at the first call."""
    ledger = _ledgers.get(connection)
    if ledger is None:
        _arm(connection.engine)
        ledger = _ledgers[connection] = Ledger()
    return ledger


def has_pending(connection: Connection) -> bool:
    """Tell whether *connection* still owes a write."""
    ledger = _ledgers.get(connection)
    return ledger is not None and bool(ledger.jobs or ledger.actions)


def add(connection: Connection, *jobs: PendingJob) -> None:
    """Let *jobs* be written by the transaction of *connection*, begun if need be."""
    ledger = ledger_of(connection)
    _ensure_transaction(connection)
    ledger.jobs.extend(jobs)
    _write_late(connection, ledger)


def at_commit(connection: Connection, action: Callable[[Connection], set[str]]) -> None:
    """Let *action* run among the last statements; it returns queues to wake."""
    ledger = ledger_of(connection)
    _ensure_transaction(connection)
    ledger.actions.append(action)
    _write_late(connection, ledger)


def _ensure_transaction(connection: Connection) -> None:
    if not connection.in_transaction():
        # As any statement would: else a commit() finds nothing to commit.
        connection.begin()


def _write_late(connection: Connection, ledger: Ledger) -> None:
    if ledger.committing:
        # Enqueued by somebody's commit listener after ours has run: the COMMIT is the
        # next statement, so this is the last moment.
        ledger.flush(connection)


def _arm(engine: Engine) -> None:
    if engine in _armed:
        return
    _armed.add(engine)
    for name, listener in (
        ("begin", _on_begin),
        ("commit", _on_commit),
        ("rollback", _on_rollback),
        ("savepoint", _on_savepoint),
        ("release_savepoint", _on_release_savepoint),
        ("rollback_savepoint", _on_rollback_savepoint),
        ("begin_twophase", _on_begin_twophase),
        ("prepare_twophase", _on_prepare_twophase),
        ("commit_twophase", _on_commit_twophase),
        ("rollback_twophase", _on_rollback_twophase),
    ):
        event.listen(engine, name, listener)
    wakeup.watch_checkins(engine)


def _on_begin(connection: Connection) -> None:
    ledger = _ledgers.get(connection)
    if ledger is not None:
        wakeup.committed(connection)
        ledger.ended()


def _on_begin_twophase(connection: Connection, xid: Any) -> None:  # noqa: ANN401, ARG001 - SQLAlchemy's signature
    _on_begin(connection)


def _on_commit(connection: Connection) -> None:
    ledger = _ledgers.get(connection)
    if ledger is None:
        return
    try:
        ledger.before_commit(connection)
    except BaseException:
        _roll_back_dbapi(connection)
        ledger.roll_back()
        raise
    wakeup.committing(connection, ledger.wake)


def _on_prepare_twophase(connection: Connection, xid: Any) -> None:  # noqa: ANN401 - SQLAlchemy's signature
    ledger = _ledgers.get(connection)
    if ledger is None:
        return
    try:
        ledger.before_commit(connection)
    except BaseException:
        _roll_back_twophase(connection, xid)
        ledger.roll_back()
        raise


def _on_commit_twophase(
    connection: Connection,
    xid: Any,  # noqa: ANN401 - SQLAlchemy's signature
    is_prepared: bool,  # noqa: FBT001 - SQLAlchemy's signature
) -> None:
    if not is_prepared:
        _on_prepare_twophase(connection, xid)
    ledger = _ledgers.get(connection)
    if ledger is not None:
        wakeup.committing(connection, ledger.wake)


def _on_rollback(connection: Connection) -> None:
    ledger = _ledgers.get(connection)
    if ledger is not None:
        ledger.roll_back()


def _on_rollback_twophase(
    connection: Connection,
    xid: Any,  # noqa: ANN401, ARG001 - SQLAlchemy's signature
    is_prepared: bool,  # noqa: ARG001, FBT001 - SQLAlchemy's signature
) -> None:
    _on_rollback(connection)


def _on_savepoint(connection: Connection, name: str | None) -> None:  # noqa: ARG001 - not named yet
    ledger = _ledgers.get(connection)
    if ledger is not None:
        ledger.begin_savepoint(connection)


def _on_release_savepoint(
    connection: Connection,
    name: str,
    context: Any,  # noqa: ANN401, ARG001 - SQLAlchemy's signature
) -> None:
    ledger = _ledgers.get(connection)
    if ledger is None:
        return
    try:
        ledger.release_savepoints(connection, _depth(connection, name))
    except BaseException:
        _roll_back_savepoint(connection, name)
        ledger.roll_back_savepoints(_depth(connection, name))
        raise


def _on_rollback_savepoint(
    connection: Connection,
    name: str,
    context: Any,  # noqa: ANN401, ARG001 - SQLAlchemy's signature
) -> None:
    ledger = _ledgers.get(connection)
    if ledger is not None:
        ledger.roll_back_savepoints(_depth(connection, name))


def _depth(connection: Connection, name: str) -> int:
    """Count the open savepoints from the innermost to *name*.

    An outer one may end while inner ones are open. The event that begins a savepoint
    does not know its name yet, and there is no public way to ask for the chain.
    """
    nested: Any = connection.get_nested_transaction()
    depth = 0
    while nested is not None:
        depth += bool(nested.is_active)
        if nested._savepoint == name:
            return depth
        nested = nested._previous_nested
    return 1


def _roll_back_dbapi(connection: Connection) -> None:
    try:
        connection.dialect.do_rollback(connection.connection)
    except BaseException:
        _invalidate(connection)


def _roll_back_twophase(connection: Connection, xid: Any) -> None:  # noqa: ANN401 - SQLAlchemy's xid
    try:
        connection.dialect.do_rollback_twophase(connection, xid, is_prepared=False)
    except BaseException:
        _invalidate(connection)


def _roll_back_savepoint(connection: Connection, name: str) -> None:
    try:
        connection.dialect.do_rollback_to_savepoint(connection, name)
    except BaseException:
        _invalidate(connection)


def _invalidate(connection: Connection) -> None:
    if not connection.invalidated:
        connection.invalidate()
