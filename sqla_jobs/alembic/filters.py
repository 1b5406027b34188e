"""Keeping autogenerate off the library's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqla_jobs.models import metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

OURS: Final = frozenset(table.name for table in metadata.tables.values())
"""The names of the library's tables."""


def include_name(
    name: str | None,
    type_: str,
    parents: Mapping[str, str | None],  # noqa: ARG001 - Alembic's signature
) -> bool:
    """Leave out the library's tables: ``context.configure(include_name=include_name)``.

    For applications whose ``target_metadata`` does not hold :data:`sqla_jobs.metadata`:
    without it autogenerate would drop tables that it does not know. Where the metadata
    is included, do not give this filter.
    """
    return type_ != "table" or name not in OURS
