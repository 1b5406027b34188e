"""Dead letters by what they died of."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from sqla_jobs.exc import InvalidOptionError
from sqla_jobs.inspect.listing import dead
from sqla_jobs.inspect.reading import parted, readable
from sqla_jobs.inspect.results import COUNT_LIMIT, DeadGroup, DeadGroups
from sqla_jobs.models import Job
from sqla_jobs.queue.selection import EVERY, JobFilter

if TYPE_CHECKING:
    from sqlalchemy import Row
    from sqlalchemy.orm import Session

MAX_GROUPS: Final = 1000
LOOKED_AT: Final = COUNT_LIMIT - 1
"""Dead letters that are grouped: the latest ones."""
LINE: Final = 200
"""Characters of a line that are compared and shown."""

# What makes two errors of one cause different: ids, addresses, digests, numbers.
_PARTICULAR: Final = re.compile(
    r"""[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}
      | 0x[0-9a-f]+ | \b(?=[0-9a-f]*[0-9])[0-9a-f]{12,}\b | [0-9]+(?:[.,:][0-9]+)*""",
    re.IGNORECASE | re.VERBOSE,
)


def dead_groups(
    session: Session, *, filters: JobFilter = EVERY, limit: int = 50
) -> DeadGroups:
    """Return dead jobs grouped by name, type of error and message, largest first.

    The message is the last line of the last attempt's error, without its numbers and
    ids. Emits one SELECT, bounded to the latest 10,000 deaths; ``filters.state`` does
    not count. :exc:`.InvalidOptionError` for a *limit* outside 1 to 1000.
    """
    if not 1 <= limit <= MAX_GROUPS:
        raise InvalidOptionError("limit", f"is {limit}: give 1 to {MAX_GROUPS}")
    statement = dead((Job.id, Job.name, Job.finished_at), filters).limit(COUNT_LIMIT)
    found = readable(session, statement, Job.id)
    rows, _ = parted(found[:LOOKED_AT])
    members: defaultdict[tuple[str, str, str], list[Row[*tuple[Any, ...]]]]
    members = defaultdict(list)
    for row in rows:
        kind, message = row.error_type or "", normalised(last_line(row.error))
        members[row.name, kind, message].append(row)
    groups = [
        DeadGroup(
            name=name,
            error_type=kind or None,
            message=message,
            count=len(those),
            first_at=those[-1].finished_at,
            last_at=those[0].finished_at,
            sample_id=those[0].id,
            sample_error=last_line(those[0].error) or None,
        )
        for (name, kind, message), those in members.items()
    ]
    # Stable: of two of one size, the one with the latest death comes first.
    groups.sort(key=lambda group: -group.count)
    return DeadGroups(
        groups[:limit],
        more=len(groups) > limit,
        looked_at=len(rows),
        older=len(found) > LOOKED_AT,
    )


def last_line(error: str | None) -> str:
    """Return the line of *error* that says what it was: a traceback's last."""
    lines = (error or "").strip().splitlines()
    return lines[-1].strip()[:LINE] if lines else ""


def normalised(text: str) -> str:
    """Return *text* with ``#`` for its numbers and ids."""
    return _PARTICULAR.sub("#", text)
