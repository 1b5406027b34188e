"""The session's side: jobs of a Session that has no connection yet, and its commit.

``enqueue`` does no I/O, so it opens no connection: the job waits with the session's
transaction until ``after_begin`` hands it to the connection's ledger. ``before_commit``
opens a connection for what nothing else did; ``after_commit`` sends the wake-up when the
session ended its own transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn
from weakref import WeakKeyDictionary

import attrs
from sqlalchemy import Connection, event
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session

from sqla_jobs.dialects import bind_arguments, dialect_named, job_connection
from sqla_jobs.exc import EnqueueRoutingError
from sqla_jobs.queue import ledger, wakeup
from sqla_jobs.queue.ledger import Action
from sqla_jobs.queue.pending import PendingJob

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import SessionTransaction


@attrs.define(eq=False)
class _Stash:
    """What one session transaction owes on a connection that it does not have yet."""

    jobs: list[PendingJob] = attrs.field(factory=list)
    actions: list[Action] = attrs.field(factory=list)


@attrs.define(eq=False)
class _Joined:
    """What we know of one session transaction."""

    connections: list[Connection] = attrs.field(factory=list)
    stash: _Stash = attrs.field(factory=_Stash)
    preparing: bool = False
    """Our ``before_commit`` has run."""
    over: bool = False
    """It is committed; other listeners of ``after_commit`` still run."""


_transactions: WeakKeyDictionary[SessionTransaction, _Joined] = WeakKeyDictionary()


def add(session: Session, *jobs: PendingJob) -> None:
    """Let *jobs* be written by the transaction that *session* is in, or begins now."""
    connection, stash = _place(session)
    if connection is not None:
        ledger.add(connection, *jobs)
    elif stash is not None:
        stash.jobs.extend(jobs)


def at_commit(session: Session, action: Action) -> None:
    """Let *action* run among the last statements of the session's transaction."""
    connection, stash = _place(session)
    if connection is not None:
        ledger.at_commit(connection, action)
    elif stash is not None:
        stash.actions.append(action)


def write_jobs(session: Session) -> None:
    """Write what *session* has pending now; see ``JobSession.write_jobs``."""
    if has_pending(session):
        # Opening the connection hands the stash over.
        connection = job_connection(session)
        ledger.ledger_of(connection).flush(connection)


def has_pending(session: Session) -> bool:
    """Tell whether the session's transaction still owes a write."""
    transaction = _current(session)
    while transaction is not None:
        joined = _transactions.get(transaction)
        if joined is not None and (
            joined.stash.jobs
            or joined.stash.actions
            or any(ledger.has_pending(c) for c in joined.connections)
        ):
            return True
        transaction = transaction.parent
    return False


def _current(session: Session) -> SessionTransaction | None:
    return session.get_nested_transaction() or session.get_transaction()


def _place(session: Session) -> tuple[Connection | None, _Stash | None]:
    bind = session.get_bind(**bind_arguments())
    dialect_named(bind.dialect)
    _refuse_strange_binds(session, bind)
    if not session.in_transaction():
        if not session.autobegin:
            msg = "Autobegin is disabled on this Session; call session.begin() first"
            raise InvalidRequestError(msg)
        session.begin()
    transaction = _current(session)
    assert transaction is not None  # noqa: S101 - it was begun above
    joined = _transactions.setdefault(transaction, _Joined())
    for connection in joined.connections:
        if _serves(connection, bind):
            if not connection.in_transaction():
                _refuse_ended()
            return connection, None
    if isinstance(bind, Connection):
        ledger.expect_jobs(bind)  # To join it the session may begin a savepoint.
    if joined.over:
        _refuse_ended()
    if joined.preparing:
        # A before_commit listener that runs after ours: nobody would open a
        # connection for the stash any more, and I/O is what a commit does anyway.
        return job_connection(session), None
    return None, joined.stash


def _refuse_ended() -> NoReturn:
    # As the session itself refuses SQL there: nobody would ever commit the job.
    msg = (
        "This session's transaction has ended and its listeners still run; no job can "
        "be enqueued in it. Use another session, or enqueue in before_commit"
    )
    raise InvalidRequestError(msg)


def _serves(connection: Connection, bind: Engine | Connection) -> bool:
    return connection is bind or connection.engine is bind


def _refuse_strange_binds(session: Session, bind: Engine | Connection) -> None:
    """Refuse a session whose mapped classes live elsewhere and that names no place.

    With ``binds={Order: a}, bind=b`` jobs would go to b, and commit apart from orders.
    """
    binds = session.binds
    if not binds or bind is not session.bind or session.twophase:
        return
    others = {str(b.engine.url) for b in binds.values() if b.engine is not bind.engine}
    if others:
        reason = (
            f"This session would write jobs to {bind.engine.url!s}, its default bind, "
            f"but it has mapped classes on {', '.join(sorted(others))}"
        )
        remedy = (
            "say where jobs live: binds={..., sqla_jobs.models.Base: engine}, on the "
            "engine whose rows they shall commit with"
        )
        raise EnqueueRoutingError(reason, remedy)


@event.listens_for(Session, "after_begin")
def _after_begin(
    session: Session, transaction: SessionTransaction, connection: Connection
) -> None:
    joined = _transactions.setdefault(transaction, _Joined())
    joined.connections.append(connection)
    if has_pending(session):
        ledger.expect_jobs(connection)  # Its savepoints begin only now.
    stash = joined.stash
    if not (stash.jobs or stash.actions):
        return
    if _serves(connection, session.get_bind(**bind_arguments())):
        joined.stash = _Stash()
        ledger.ledger_of(connection).actions.extend(stash.actions)
        ledger.ledger_of(connection).jobs.extend(stash.jobs)


@event.listens_for(Session, "before_commit")
def _before_commit(session: Session) -> None:
    transaction = _current(session)
    if transaction is None:
        return
    # Also where nothing is pending: a listener that comes after ours may enqueue.
    joined = _transactions.setdefault(transaction, _Joined())
    joined.preparing = True
    if joined.stash.jobs or joined.stash.actions:
        job_connection(session)


@event.listens_for(Session, "after_commit")
def _after_commit(session: Session) -> None:
    if session.in_nested_transaction():
        return  # a savepoint was released; nothing is committed
    transaction = session.get_transaction()
    joined = _transactions.get(transaction) if transaction is not None else None
    if joined is not None:
        joined.over = True
        for connection in joined.connections:
            if not connection.in_transaction():
                wakeup.committed(connection)


@event.listens_for(Session, "after_transaction_end")
def _after_transaction_end(
    session: Session,  # noqa: ARG001 - SQLAlchemy's signature
    transaction: SessionTransaction,
) -> None:
    joined = _transactions.pop(transaction, None)
    for connection in joined.connections if joined is not None else ():
        # A savepoint whose RELEASE raised (a refused job, a lost attempt) was rolled
        # back, but a Session that is closed then leaves it to its Connection, which
        # refuses everything from there on: a test's whole transaction.
        nested = connection.get_nested_transaction()
        if nested is not None and not nested.is_active:
            nested.close()
