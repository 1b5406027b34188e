"""How values travel: ids as SQLAlchemy stores them here, instants as text, JSON rows."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqla_jobs.dialects.rows import NewJob, SettleRow


def hex_of(id_: str) -> str:
    """Return *id_* as SQLAlchemy stores a Uuid here."""
    return id_.replace("-", "")


def id_of(hex_: str) -> str:
    """Return the id that is stored as *hex_*."""
    return str(UUID(hex_))


def hexes(ids: Iterable[str]) -> str:
    """Return *ids* as one JSON array."""
    return json.dumps([hex_of(id_) for id_ in ids])


def stored(instant: datetime) -> str:
    """Return *instant* as SQLAlchemy stores a DateTime here."""
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"


def instant_of(text: str) -> datetime:
    """Return the aware instant that is stored as *text*."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def job_rows(jobs: Iterable[tuple[str, NewJob]]) -> str:
    """Return new rows, each under its id, as one JSON array."""
    return json.dumps(
        [
            {
                "id": hex_of(id_),
                "tenant": job.tenant,
                "name": job.name,
                "key": job.key,
                "queue": job.queue,
                "priority": job.priority,
                "input": job.input,
                "max_attempts": job.max_attempts,
                "run_at": job.run_at and stored(job.run_at),
                "after": job.after,
                "mode": job.mode,
                "enqueued_by": job.enqueued_by,
                "traceparent": job.traceparent,
            }
            for id_, job in jobs
        ]
    )


def settle_rows(rows: Iterable[SettleRow]) -> str:
    """Return what the settling statement reads of *rows* as one JSON array."""
    return json.dumps(
        [
            {
                "id": hex_of(row.id),
                "fence": row.fence,
                "outcome": row.outcome,
                "delay": row.delay,
            }
            for row in rows
        ]
    )


def without_repeats(rows: Sequence[SettleRow]) -> Iterable[list[SettleRow]]:
    """Split *rows* so that no id comes twice in one part; mostly one part."""
    seen: Counter[str] = Counter()
    parts: list[list[SettleRow]] = []
    for row in rows:
        place = seen[row.id]
        seen[row.id] += 1
        if place == len(parts):
            parts.append([])
        parts[place].append(row)
    return parts


def attempt_row(
    row: SettleRow, *, worker_id: str, worker: str, started_at: str | None
) -> dict[str, object]:
    """Return the history's record of the attempt that *row* ended."""
    if row.timed_out:
        outcome = "timed_out"
    else:
        outcome = {"retry": "failed", "snooze": "snoozed"}.get(row.outcome, row.outcome)
    return {
        "id": hex_of(row.id),
        "fence": row.fence,
        "number": row.number,
        "worker_id": hex_of(worker_id),
        "worker": worker,
        "started_at": started_at,
        "outcome": outcome,
        "error_type": row.error_type,
        "error": row.error,
    }


class Picked(NamedTuple):
    """A running job that a rescue takes away, and why."""

    id: str
    fence: int
    worker_id: str | None
    number: int
    started_at: str | None
    name: str
    queue: str
    worker: str | None
    why: str
    """lost, timed_out or cancelled."""


_ERRORS: Final = {
    "lost": (
        "WorkerLost",
        "worker lost: its lease ran out while the attempt ran",
    ),
    "timed_out": (
        "JobTimeoutError",
        "the deadline passed and the worker did not end the attempt",
    ),
    "cancelled": ("JobAbortedError", "cancelled, and the attempt did not stop"),
}


def rescued_row(picked: Picked) -> dict[str, object]:
    """Return the history's record of the attempt that a rescue ended."""
    error_type, error = _ERRORS[picked.why]
    return {
        "id": picked.id,
        "fence": picked.fence,
        "number": picked.number,
        "worker_id": picked.worker_id,
        "worker": picked.worker,
        "started_at": picked.started_at,
        "outcome": picked.why,
        "error_type": error_type,
        "error": error,
    }
