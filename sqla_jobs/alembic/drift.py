"""How the tables of a database differ from those that this package expects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Index, Table, inspect, text

from sqla_jobs.alembic.filters import OURS
from sqla_jobs.models import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection

_STORAGE: Final = text(
    "select coalesce(c.reloptions, '{}') from pg_class c"
    " join pg_namespace n on n.oid = c.relnamespace"
    " where c.relname = :name and c.relkind = 'r'"
    " and n.nspname = coalesce(:schema, current_schema())"
)
_WORDS: Final = re.compile(r"[a-z_]+")
# What the server writes in other words: IN as = ANY (ARRAY[...]), and casts.
_NOISE: Final = {"in", "any", "array", "text", "and"}


def find_drift(connection: Connection) -> list[str]:
    """Return each difference as a sentence; none: the tables are as they should be.

    Compares tables, columns, indexes and types as Alembic does, and what that cannot
    see: the predicates of partial indexes and, on PostgreSQL, the tables' storage
    parameters. Reads only.
    """
    return [*_compared(connection), *_predicates(connection), *_storage(connection)]


def _compared(connection: Connection) -> Iterator[str]:
    def include_name(
        name: str | None,
        type_: str,
        parents: Mapping[str, str | None],  # noqa: ARG001 - Alembic's signature
    ) -> bool:
        if type_ == "schema":
            return name == metadata.schema
        return type_ != "table" or name in OURS

    context = MigrationContext.configure(
        connection,
        opts={
            "include_name": include_name,
            "include_schemas": metadata.schema is not None,
        },
    )
    for difference in compare_metadata(context, metadata):
        for part in difference if isinstance(difference, list) else [difference]:
            yield _sentence(part)


def _sentence(difference: tuple[Any, ...]) -> str:
    what, *objects = difference
    subject = objects[-1] if what.endswith(("table", "index")) else None
    if isinstance(subject, Table | Index):
        name = str(subject.name)
    else:
        name = " ".join(
            str(getattr(each, "name", each))
            for each in objects
            if each is not None and not isinstance(each, dict)
        )
    verb, _, kind = what.partition("_")
    word = {"add": "is missing", "remove": "should not be there"}.get(verb, "differs")
    return f"{kind.replace('_', ' ')} {name} {word}"


def _predicates(connection: Connection) -> Iterator[str]:
    looked = inspect(connection)
    option = f"{connection.dialect.name}_where"
    for table in metadata.sorted_tables:
        if not looked.has_table(table.name, schema=table.schema):
            continue
        found = {
            index["name"]: index.get("dialect_options", {}).get(option)
            for index in looked.get_indexes(table.name, schema=table.schema)
        }
        for index in table.indexes:
            if index.name not in found:
                continue
            wanted = index.dialect_options[connection.dialect.name]["where"]
            if _words(wanted) != _words(found[index.name]):
                yield f"index {index.name} is not limited to: {wanted}"


def _words(predicate: object) -> list[str]:
    words = _WORDS.findall("" if predicate is None else str(predicate).lower())
    return sorted(word for word in words if word not in _NOISE)


def _storage(connection: Connection) -> Iterator[str]:
    if connection.dialect.name != "postgresql":
        return
    for table in metadata.sorted_tables:
        names = {"name": table.name, "schema": table.schema}
        found = connection.execute(_STORAGE, names).scalar()
        if found is None:
            continue
        wanted = table.dialect_options["postgresql"].get("with") or {}
        given = dict(each.split("=", 1) for each in found)
        if given != {name: str(value) for name, value in wanted.items()}:
            yield f"table {table.name} has other storage parameters"
