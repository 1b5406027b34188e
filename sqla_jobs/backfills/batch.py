"""One batch: the next rows in key order, locked, changed, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
from sqlalchemy import func, inspect, select
from sqlalchemy.exc import DBAPIError

from sqla_jobs.backfills.keys import Key, Target, key_text
from sqla_jobs.backfills.ledger import add_failure
from sqla_jobs.declare.backfill import Skip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Delete, Select, Update
    from sqlalchemy.orm import Session

    from sqla_jobs.declare.backfill import BackfillSpec

LIMITS: Final = (
    ("idle_in_transaction_session_timeout", "60s"),
    ("lock_timeout", "30s"),
)


@attrs.frozen
class Batch:
    """What a batch did."""

    rows: int
    """Rows changed."""
    failed: int
    last: Key | None
    """The key reached; None when nothing was left after the given one."""


def run_batch(
    session: Session,
    spec: BackfillSpec,
    target: Target,
    *,
    after: Key | None,
    size: int,
    avoid: Sequence[Key] = (),
) -> Batch:
    """Change the next rows in the session's transaction, which the caller commits.

    :param avoid: keys of rows that failed before.
    """
    if spec.statement is not None:
        return _statement(session, spec.statement, target, after, size)
    assert spec.rows is not None  # noqa: S101 - there is one of the two
    if limits := _limits(session):
        session.execute(select(*limits))
    beyond = target.beyond(after)
    chosen = spec.rows if beyond is None else spec.rows.where(beyond)
    rows = _rows(session, chosen, target, size, avoid)
    if not rows:
        return Batch(0, 0, None)
    keys = [_key(row) for row in rows]
    failed = _apply(session, spec, rows, keys)
    return Batch(len(rows) - failed, failed, keys[-1])


def _statement(
    session: Session,
    statement: Update | Delete,
    target: Target,
    after: Key | None,
    size: int,
) -> Batch:
    keys = target.keys(after, size).subquery()
    # The bounds ride along: another round trip per batch is a tenth of its time.
    found = session.execute(
        select(*keys.c, *_limits(session))
        .order_by(*(column.desc() for column in keys.c))
        .limit(1)
    ).first()
    if found is None:
        return Batch(0, 0, None)
    last = tuple(found)[: len(keys.c)]
    # A row that another transaction has just changed is looked at again by the
    # statement itself, once it has the row's lock.
    ranged = statement.where(target.up_to(last))
    beyond = target.beyond(after)
    if beyond is not None:
        ranged = ranged.where(beyond)
    done = session.execute(ranged, execution_options={"synchronize_session": False})
    return Batch(done.rowcount, 0, last)  # type: ignore[attr-defined]  # of DML


def _rows(
    session: Session,
    chosen: Select[*tuple[Any, ...]],
    target: Target,
    size: int,
    avoid: Sequence[Key],
) -> Sequence[Any]:
    """Lock and return the next rows of *chosen*, in the order of their keys."""
    chosen = chosen.order_by(None).order_by(*target.columns).limit(size)
    if avoid:
        chosen = chosen.where(~target.among(avoid))
    # Not SKIP LOCKED: a locked row would be stepped over for good.
    return session.scalars(chosen.with_for_update()).all()


def _key(row: object) -> Key:
    state: Any = inspect(row)
    return tuple(state.identity)


def _apply(
    session: Session, spec: BackfillSpec, rows: Sequence[Any], keys: Sequence[Key]
) -> int:
    """Call the function; with ``Skip`` find the rows that fail, and return how many."""
    assert spec.function is not None  # noqa: S101 - rows come with a function
    if not isinstance(spec.on_error, Skip):
        spec.function(session, rows)
        session.flush()
        return 0
    try:
        with session.begin_nested():
            spec.function(session, rows)
            session.flush()
    except Exception as error:
        if isinstance(error, DBAPIError) and (is_transient(error) or is_timeout(error)):
            raise  # No row of the batch is to blame.
        if len(rows) == 1:
            add_failure(session, spec.name, key_text(keys[0]), error)
            return 1
    else:
        return 0
    half = len(rows) // 2
    return sum(
        _apply(session, spec, rows[part], keys[part])
        for part in (slice(half), slice(half, None))
    )


def is_transient(error: DBAPIError) -> bool:
    """Tell whether the same batch can succeed when it is tried again."""
    if error.connection_invalidated:
        return True
    state = getattr(error.orig, "sqlstate", None) or ""
    # Serialization failures, deadlocks, lock time-outs, lost connections.
    if state.startswith(("40", "08", "57P")) or state == "55P03":
        return True
    return "database is locked" in str(error.orig)


def is_timeout(error: DBAPIError) -> bool:
    """Tell whether the server ended the statement for its length: less may do."""
    return getattr(error.orig, "sqlstate", None) == "57014"


def _limits(session: Session) -> list[ColumnElement[str]]:
    """Bound how long the session's transaction may idle or wait, where rows are locked.

    A run that is frozen inside of a batch would hold its rows for as long as it sleeps,
    against the application and against the run that takes over.
    """
    if session.get_bind().dialect.name != "postgresql":
        return []
    return [func.set_config(name, limit, True) for name, limit in LIMITS]
