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
COMMIT                rolls the DBAPI transaction back
RELEASE               rolls back to that savepoint; the outer transaction goes on
SAVEPOINT, PREPARE    dooms the transaction: until a rollback that covers the failure,
                      every COMMIT, PREPARE and RELEASE raises the first error
``write_jobs()``      the same, unless the error is a refusal of ours (a duplicate):
                      that one leaves the transaction usable
====================  ===============================================================

One listener per event, in one order: the attempt's fence, pending jobs and actions, the
attempt's completion. Registration order of several listeners is no design: listeners of
a Connection run before those of its Engine. Ours listen to the class Engine from the
start: to listen to one engine at its first enqueue would break the commit that another
thread is in (its list of listeners changes while it is walked), and an engine with
options of its own would hear everything twice, for itself and for its parent.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidRequestError

from sqla_jobs.dialects import dialect_of
from sqla_jobs.exc import DuplicateJobError, JobsError
from sqla_jobs.queue import wakeup
from sqla_jobs.queue.turn import before_savepoint, raise_explained, take_turn
from sqla_jobs.queue.write import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from sqlalchemy import Connection, ExceptionContext

    from sqla_jobs.queue.pending import Enqueued, PendingJob

T = TypeVar("T")


class Fence(Protocol):
    """The attempt that a transaction belongs to; see :mod:`sqla_jobs.queue.fence`."""

    @property
    def completing(self) -> bool:
        """Whether this commit shall settle the attempt."""

    def hold(self, connection: Connection) -> None:
        """Lock the job row; raise when the attempt has lost it."""

    def settle(self, connection: Connection) -> set[str]:
        """Settle the attempt in this transaction; return the queues to wake."""


class Action(Protocol):
    """A change of one existing job that waits for the end of the transaction."""

    @property
    def job_id(self) -> UUID:
        """The row it locks: rows are locked in this order, whatever was called first."""

    def __call__(self, connection: Connection) -> set[str]:
        """Make the change; return the queues to wake."""


class Ledger:
    """Everything that one Connection's transaction still has to write."""

    __slots__ = (
        "_wakes",
        "_written",
        "actions",
        "carries",
        "committing",
        "doomed",
        "fence",
        "fenced_at",
        "jobs",
    )

    def __init__(self) -> None:
        """Start with nothing owed."""
        self.jobs: list[PendingJob] = []
        self.actions: list[Action] = []
        self.carries = False
        """Jobs are to be expected: its transactions begin before their savepoints."""
        self.fence: Fence | None = None
        # The savepoint whose RELEASE is the commit of the fence's session: 0 is the
        # transaction itself, more when the session joined one that is somebody else's.
        self.fenced_at = 0
        self.doomed: BaseException | None = None
        self.committing = False
        # Handles written so far and queues to wake for them, by the number of
        # savepoints that were open then: a ROLLBACK TO takes both back.
        self._written: defaultdict[int, list[Enqueued]] = defaultdict(list)
        self._wakes: defaultdict[int, set[str]] = defaultdict(set)

    def flush(self, connection: Connection) -> None:
        """Write what is pending, in the order of locks: actions by id, then jobs."""
        actions, self.actions = self.actions, []
        jobs, self.jobs = self.jobs, []
        if not (actions or jobs):
            return
        refused: list[JobsError] = []
        wakes = self.wakes(connection)
        self._written[_depth_now(connection)].extend(job.handle for job in jobs)
        try:
            take_turn(connection)
            for action in sorted(actions, key=lambda action: action.job_id):
                try:
                    wakes |= action(connection)
                except JobsError as error:
                    # The transaction is usable, so all others are written first.
                    refused.append(error)
            if jobs:
                try:
                    write(connection, jobs, wakes)
                except DuplicateJobError as error:
                    refused.append(error)
        except BaseException as error:
            # What was pending is not all written. And when the server has aborted the
            # transaction, a COMMIT of it would answer ROLLBACK and raise nothing.
            self.doomed = error
            raise_explained(connection, error)
        if refused:
            raise refused[0]

    def before_commit(self, connection: Connection) -> None:
        """Do all that is owed before this transaction may end."""
        if self.doomed is not None:
            raise self.doomed
        self.committing = True
        owed = bool(self.jobs or self.actions)
        self._flush_fenced(connection)
        if self._written and self.fence is None and not owed:
            # Something was written earlier. If a statement has failed since then and its
            # error was swallowed, the COMMIT would roll it back and raise nothing;
            # any statement raises.
            connection.exec_driver_sql("SELECT 1")

    def _flush_fenced(self, connection: Connection) -> None:
        """Write what is pending if the attempt, where there is one, owns its job."""
        fence = self.fence
        if fence is not None:
            take_turn(connection)
        if fence is not None and (self.jobs or self.actions or not fence.completing):
            fence.hold(connection)
        self.flush(connection)
        if fence is not None and fence.completing:
            self.wakes(connection).update(fence.settle(connection))

    def fence_by(self, fence: Fence, connection: Connection) -> None:
        """Let *fence* judge the end of what a session has just begun on *connection*."""
        self.fence, self.carries = fence, True
        self.fenced_at = _depth_now(connection)

    def begin_savepoint(self, connection: Connection) -> None:
        """Write what is pending before the savepoint; it belongs to what is outside."""
        if self.doomed is not None:
            raise self.doomed
        try:
            self.flush(connection)
            if self.carries:
                before_savepoint(connection)
        except BaseException as error:
            self.doomed = error
            raise

    def release_savepoint(self, connection: Connection, depth: int) -> None:
        """Write what is pending inside savepoint number *depth*; it joins the outer."""
        if self.doomed is not None:
            raise self.doomed
        if self.fence is not None and depth == self.fenced_at:
            self._flush_fenced(connection)
            self.fence = None
        else:
            self.flush(connection)
        for handles in _since(self._written, depth):
            self._written[depth - 1].extend(handles)
        for wakes in _since(self._wakes, depth):
            self._wakes[depth - 1] |= wakes

    def roll_back_savepoint(self, depth: int) -> None:
        """Forget what was enqueued or written in savepoint number *depth*."""
        self._forget_pending()
        self.doomed = None
        if self.fenced_at > 0 and depth <= self.fenced_at:
            self.fence = None
        for handles in _since(self._written, depth):
            for handle in handles:
                handle.unwritten()
        _since(self._wakes, depth)

    def roll_back(self) -> None:
        """Forget everything: the transaction is gone."""
        self.roll_back_savepoint(0)
        self.ended()

    def ended(self) -> None:
        """Start over after a transaction ended."""
        self._written.clear()
        self._wakes.clear()
        self.doomed, self.committing = None, False

    def wakes(self, connection: Connection) -> set[str]:
        """Return the set of queues to wake if what is written now is committed."""
        return self._wakes[_depth_now(connection)]

    def to_wake(self) -> set[str]:
        """Return all queues that the commit of this transaction shall wake."""
        return set[str]().union(*self._wakes.values())

    def _forget_pending(self) -> None:
        self.jobs.clear()
        self.actions.clear()


def _since(levels: dict[int, T], depth: int) -> list[T]:
    """Take away what belongs to savepoint number *depth* and those inside it."""
    return [levels.pop(level) for level in sorted(levels) if level >= depth]


_ledgers: WeakKeyDictionary[Connection, Ledger] = WeakKeyDictionary()


def ledger_of(connection: Connection) -> Ledger:
    """Return the ledger of *connection*, opened at the first call."""
    ledger = _ledgers.get(connection)
    if ledger is None:
        ledger = _ledgers[connection] = Ledger()
    return ledger


def expect_jobs(connection: Connection) -> Ledger:
    """Let savepoints on *connection* be savepoints, also before its first job."""
    ledger = ledger_of(connection)
    ledger.carries = True
    return ledger


def has_pending(connection: Connection) -> bool:
    """Tell whether *connection* still owes a write."""
    ledger = _ledgers.get(connection)
    return ledger is not None and bool(ledger.jobs or ledger.actions)


def add(connection: Connection, *jobs: PendingJob) -> None:
    """Let *jobs* be written by the transaction of *connection*, begun if need be."""
    ledger = _opened(connection)
    ledger.jobs.extend(jobs)
    _write_late(connection, ledger)


def at_commit(connection: Connection, action: Action) -> None:
    """Let *action* run among the last statements; it returns queues to wake."""
    ledger = _opened(connection)
    ledger.actions.append(action)
    _write_late(connection, ledger)


def _opened(connection: Connection) -> Ledger:
    if not connection.in_transaction():
        # As any statement would: else a commit() finds nothing to commit.
        connection.begin()
    if getattr(connection.get_transaction(), "_is_prepared", False):
        msg = "This transaction is prepared: enqueue before prepare()"
        raise InvalidRequestError(msg)
    dialect_of(connection).refuse_unfit(connection)
    return expect_jobs(connection)


def _write_late(connection: Connection, ledger: Ledger) -> None:
    if ledger.committing:
        # Enqueued by somebody's commit listener after ours has run: the COMMIT is the
        # next statement, so this is the last moment.
        with _guard(connection, ledger):
            ledger.flush(connection)
            wakeup.committing(connection, ledger.to_wake())


@contextmanager
def _guard(connection: Connection, ledger: Ledger) -> Iterator[None]:
    """Leave no open transaction behind when the body of a commit listener raises."""
    try:
        yield
    except BaseException:
        _roll_back_dbapi(connection)
        ledger.roll_back()
        raise


@event.listens_for(Engine, "begin")
def _on_begin(connection: Connection) -> None:
    ledger = _ledgers.get(connection)
    if ledger is not None:
        wakeup.committed(connection)
        ledger.ended()


@event.listens_for(Engine, "begin_twophase")
def _on_begin_twophase(connection: Connection, xid: Any) -> None:  # noqa: ANN401, ARG001 - SQLAlchemy's signature
    _on_begin(connection)


@event.listens_for(Engine, "commit")
def _on_commit(connection: Connection) -> None:
    # Also where nothing is owed yet: a listener that comes after ours may enqueue.
    ledger = ledger_of(connection)
    with _guard(connection, ledger):
        ledger.before_commit(connection)
        wakeup.committing(connection, ledger.to_wake())


@event.listens_for(Engine, "handle_error")
def _on_error(context: ExceptionContext) -> None:
    """Forget a transaction whose COMMIT the server refused: it is rolled back.

    Such a commit leaves no event behind. An ambiguous one (the connection is lost) is
    left alone: a hint too many costs a claim that finds nothing.
    """
    connection = context.connection
    if connection is None or context.statement is not None or context.is_disconnect:
        return
    ledger = _ledgers.get(connection)
    if ledger is not None and ledger.committing:
        wakeup.failed(connection)
        ledger.roll_back()


@event.listens_for(Engine, "prepare_twophase")
def _on_prepare_twophase(connection: Connection, xid: Any) -> None:  # noqa: ANN401, ARG001 - SQLAlchemy's signature
    ledger = ledger_of(connection)
    try:
        ledger.before_commit(connection)
    except BaseException as error:
        # The transaction stays active, so its close rolls it back, as ours would do
        # once too often. But a COMMIT must not follow.
        ledger.doomed = error
        raise


@event.listens_for(Engine, "commit_twophase")
def _on_commit_twophase(
    connection: Connection,
    xid: Any,  # noqa: ANN401 - SQLAlchemy's signature
    is_prepared: bool,  # noqa: FBT001 - SQLAlchemy's signature
) -> None:
    ledger = ledger_of(connection)
    if is_prepared:
        wakeup.committing(connection, ledger.to_wake())
        return
    try:
        ledger.before_commit(connection)
        wakeup.committing(connection, ledger.to_wake())
    except BaseException:
        _roll_back_twophase(connection, xid)
        ledger.roll_back()
        raise


@event.listens_for(Engine, "rollback")
def _on_rollback(connection: Connection) -> None:
    ledger = _ledgers.get(connection)
    if ledger is not None:
        ledger.roll_back()


@event.listens_for(Engine, "rollback_twophase")
def _on_rollback_twophase(
    connection: Connection,
    xid: Any,  # noqa: ANN401, ARG001 - SQLAlchemy's signature
    is_prepared: bool,  # noqa: ARG001, FBT001 - SQLAlchemy's signature
) -> None:
    _on_rollback(connection)


@event.listens_for(Engine, "savepoint")
def _on_savepoint(connection: Connection, name: str | None) -> None:  # noqa: ARG001 - not named yet
    ledger = _ledgers.get(connection)
    if ledger is not None:
        ledger.begin_savepoint(connection)


@event.listens_for(Engine, "release_savepoint")
def _on_release_savepoint(
    connection: Connection,
    name: str,
    context: Any,  # noqa: ANN401, ARG001 - SQLAlchemy's signature
) -> None:
    ledger = _ledgers.get(connection)
    if ledger is None:
        return
    try:
        ledger.release_savepoint(connection, _depth(connection, name))
    except BaseException:
        _roll_back_dbapi_savepoint(connection, name)
        ledger.roll_back_savepoint(_depth(connection, name))
        raise


@event.listens_for(Engine, "rollback_savepoint")
def _on_rollback_savepoint(
    connection: Connection,
    name: str,
    context: Any,  # noqa: ANN401, ARG001 - SQLAlchemy's signature
) -> None:
    ledger = _ledgers.get(connection)
    if ledger is not None:
        ledger.roll_back_savepoint(_depth(connection, name))


def _open_savepoints(connection: Connection) -> Iterator[Any]:
    """Yield the open savepoints of *connection*, the innermost first.

    There is no public way to ask for the chain, and the event that begins a savepoint
    does not know its name yet.
    """
    nested: Any = connection.get_nested_transaction()
    while nested is not None:
        if nested.is_active:
            yield nested
        nested = nested._previous_nested


def _depth_now(connection: Connection) -> int:
    """Count the savepoints of *connection* that are open."""
    return sum(1 for _ in _open_savepoints(connection))


def _depth(connection: Connection, name: str) -> int:
    """Return the number of savepoint *name*, counted from the outermost, which is 1.

    An outer one may end while inner ones are open.
    """
    names = [nested._savepoint for nested in _open_savepoints(connection)]
    return len(names) - names.index(name)


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


def _roll_back_dbapi_savepoint(connection: Connection, name: str) -> None:
    try:
        connection.dialect.do_rollback_to_savepoint(connection, name)
    except BaseException:
        _invalidate(connection)


def _invalidate(connection: Connection) -> None:
    if not connection.invalidated:
        connection.invalidate()
