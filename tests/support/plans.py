"""Plans of the statements that the library really sends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import attrs
from sqlalchemy import Connection, Engine, event


@attrs.frozen
class Statement:
    """A statement as the driver got it."""

    text: str
    parameters: Any


@attrs.frozen
class Plan:
    """What the server did to answer one statement."""

    root: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        """Yield every node, parents first."""
        todo = [self.root]
        while todo:
            node = todo.pop()
            yield node
            todo += node.get("Plans", [])

    def scans(self, kind: str) -> list[str]:
        """Return the relations that are read by nodes of *kind* (``Seq Scan``)."""
        return [
            str(node["Relation Name"])
            for node in self.nodes()
            if node["Node Type"] == kind and "Relation Name" in node
        ]

    @property
    def buffers(self) -> int:
        """An upper bound of the pages touched.

        A writing CTE that nobody reads runs after the root has ended and is not in its
        sum, so every one is added; one that is read counts twice.
        """
        return sum(
            node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0)
            for node in self.nodes()
            if node is self.root
            or (
                node["Node Type"] == "ModifyTable"
                and str(node.get("Subplan Name", "")).startswith("CTE ")
            )
        )

    @property
    def rows(self) -> float:
        """Rows that came out of the root."""
        return float(self.root["Actual Rows"])

    def __str__(self) -> str:
        """Show the tree, for the message of a failed test."""
        return json.dumps(self.root, indent=1)


@contextlib.contextmanager
def captured(engine: Engine) -> Iterator[list[Statement]]:
    """Collect the statements that *engine* sends meanwhile."""
    seen: list[Statement] = []

    def listen(
        connection: Connection,
        cursor: object,
        statement: str,
        parameters: Any,
        *rest: object,
    ) -> None:
        seen.append(Statement(statement, parameters))

    event.listen(engine, "before_cursor_execute", listen)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", listen)


def explain(engine: Engine, statement: Statement, *settings: str) -> Plan:
    """Run *statement* once more under EXPLAIN ANALYZE, and roll it back.

    :param settings: ``enable_nestloop = off``, for this run only.
    """
    with engine.connect() as connection:
        try:
            for setting in settings:
                connection.exec_driver_sql(f"set local {setting}")
            rows = connection.exec_driver_sql(
                f"explain (analyze, buffers, format json) {statement.text}",
                statement.parameters,
            )
            return Plan(rows.scalar_one()[0]["Plan"])
        finally:
            connection.rollback()
