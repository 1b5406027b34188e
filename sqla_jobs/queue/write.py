"""Writing pending jobs: one sorted INSERT, then whatever its duplicates ask for."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

from sqla_jobs.dialects import dialect_of
from sqla_jobs.exc import DuplicateJobError, EnqueueConflictError, JobIdTakenError
from sqla_jobs.queue.pending import EnqueueOutcome, Merged, PendingJob, merge
from sqla_jobs.states import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from sqla_jobs.dialects import Existing, QueueDialect

logger = logging.getLogger("sqla_jobs.enqueue")

TRIES: Final = 3
"""How often a duplicate may vanish (retention, a rollback) while we look at it."""
CHUNK_ROWS: Final = 5_000
CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Bounds of one INSERT: a statement's parameters are held in memory by both sides."""
WAKE_WITHIN: Final = 15.0
"""Jobs due later than this many seconds are found by the workers' backstop poll."""


def write(
    connection: Connection, pending: Sequence[PendingJob], wake: set[str]
) -> None:
    """Write *pending* in the connection's transaction; add the queues to *wake*.

    Every handle learns what became of its job. A duplicate in mode ``error`` raises
    after the others are written, and leaves the transaction usable.

    :raises DuplicateJobError: a job in mode ``error`` exists already.
    :raises JobIdTakenError: a new id belongs to another job.
    :raises EnqueueConflictError: a duplicate vanished each time it was looked at.
    """
    dialect = dialect_of(connection)
    todo = merge(pending)
    refused: list[DuplicateJobError] = []
    for _ in range(TRIES):
        rest: list[Merged] = []
        for chunk in _chunks(todo):
            created = dialect.insert_jobs(connection, [m.row for m in chunk])
            for merged in chunk:
                if merged.row.id in created:
                    refused += _created(merged)
                    wake |= _due(merged)
                else:
                    rest.append(merged)
        todo = _meet_existing(connection, dialect, rest, wake, refused)
        if not todo:
            break
    else:
        row = todo[0].row
        raise EnqueueConflictError(row.name, row.key, TRIES)
    if refused:
        raise refused[0]


def _chunks(todo: Sequence[Merged]) -> Iterator[list[Merged]]:
    rows = iter(todo)
    while chunk := list(islice(rows, CHUNK_ROWS)):
        size, start = 0, 0
        for end, merged in enumerate(chunk):
            size += len(merged.row.input)
            if size > CHUNK_BYTES:
                yield chunk[start : end + 1]
                size, start = 0, end + 1
        if start < len(chunk):
            yield chunk[start:]


def _due(merged: Merged) -> set[str]:
    row = merged.row
    return {row.queue} if row.run_at is not None or row.after < WAKE_WITHIN else set()


def _created(merged: Merged) -> list[DuplicateJobError]:
    id_ = UUID(merged.row.id)
    refused = []
    for place, call in enumerate(merged.calls):
        if place and call.mode == "error":
            refused.append(_duplicate(call, id_, JobState.READY))
        else:
            after: dict[str, EnqueueOutcome] = {
                "keep": "kept",
                "replace": "replaced",
                "rerun": "rerun",
            }
            outcome = after[call.mode] if place else "created"
            call.handle.written(id_, outcome, JobState.READY)
    return refused


def _duplicate(call: PendingJob, id_: UUID, state: str) -> DuplicateJobError:
    return DuplicateJobError(call.handle.name, call.handle.key, id_, state)


def _meet_existing(
    connection: Connection,
    dialect: QueueDialect,
    rest: Sequence[Merged],
    wake: set[str],
    refused: list[DuplicateJobError],
) -> list[Merged]:
    """Do what each duplicate's mode says; return those that are gone again."""
    if not rest:
        return []
    found: dict[tuple[str, str, str], Existing] = {}
    owners: dict[str, tuple[str, str, str]] = {}
    for chunk in _chunks(rest):
        for row in dialect.find_existing(connection, [m.row for m in chunk]):
            found[row.identity] = row
            owners[row.id] = row.identity
    gone: list[Merged] = []
    changing: list[tuple[str, Merged]] = []
    for merged in rest:
        if owners.get(merged.row.id, merged.row.identity) != merged.row.identity:
            raise JobIdTakenError(UUID(merged.row.id), merged.row.name, merged.row.key)
        existing = found.get(merged.row.identity)
        if existing is None:
            gone.append(merged)
        elif merged.row.mode in ("replace", "rerun"):
            changing.append((existing.id, merged))
        else:
            refused += _kept(merged, existing)
    changing.sort(key=lambda pair: UUID(pair[0]).bytes)
    if changing:
        changed = {
            row.id: row
            for row in dialect.renew_jobs(
                connection, [(id_, merged.row) for id_, merged in changing]
            )
        }
        for id_, merged in changing:
            if id_ not in changed:
                gone.append(merged)
                continue
            refused += _kept(merged, changed[id_])
            if changed[id_].outcome != "kept":
                wake.add(changed[id_].queue)
    return gone


def _kept(merged: Merged, existing: Existing) -> list[DuplicateJobError]:
    refused = []
    id_ = UUID(existing.id)
    for call in merged.calls:
        if call.mode == "error":
            refused.append(_duplicate(call, id_, existing.state))
            continue
        outcome = "kept" if call.mode == "keep" else existing.outcome
        call.handle.written(id_, cast("EnqueueOutcome", outcome), existing.state)
        if outcome == "kept" and existing.state in (JobState.DEAD, JobState.CANCELLED):
            # The caller wanted work done and got a job that will not run.
            logger.warning(
                "enqueue of %s kept job %s, which is %s and will not run: retry it, "
                "or enqueue with on_duplicate='rerun'",
                existing.name,
                existing.id,
                existing.state,
                extra={"job_id": existing.id, "job_name": existing.name},
            )
    return refused
