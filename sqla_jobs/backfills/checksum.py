"""What makes a declaration the same one: its declared facts, not its source."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqla_jobs.backfills.keys import Target
    from sqla_jobs.declare.backfill import BackfillSpec


def backfill_checksum(spec: BackfillSpec, target: Target) -> str:
    """Return a digest of name, version, revision, table, keys and statement.

    The function's source is no part of it: it reads differently in another version of
    Python. Who changes what it does raises ``version``.
    """
    statement = spec.rows if spec.rows is not None else spec.statement
    compiled = statement.compile() if statement is not None else None
    facts = (
        spec.name,
        str(spec.version),
        spec.after,
        str(target.table),
        ",".join(str(column) for column in target.columns),
        str(compiled),
        "" if compiled is None else repr(sorted(compiled.params.items())),
    )
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()
