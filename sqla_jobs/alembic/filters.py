"""Keeping autogenerate off the library's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqla_jobs.models import metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS: Final = "sqla_"


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
    if type_ != "table" or name is None:
        return True
    return not (name.startswith(_OURS) and _is_known(name))


def _is_known(name: str) -> bool:
    return any(table.name == name for table in metadata.tables.values())
