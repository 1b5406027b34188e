"""The part of the registry that declares backfills."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from sqla_jobs.declare.backfill import BackfillSpec, OnError, Stop, make_spec
from sqla_jobs.declare.declarations import Declarations, caller

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Delete, Select, Update

    from sqla_jobs.declare.rate import Rate
    from sqla_jobs.session import JobSession

T = TypeVar("T")


class BackfillRegistry:
    """The backfills of a :class:`.Jobs`, those of included registries too."""

    def __init__(self) -> None:
        self._backfills = Declarations[BackfillSpec]()
        self.backfills: Mapping[str, BackfillSpec] = self._backfills.view
        """Every declared backfill by its name; a live view."""

    def backfill(
        self,
        name: str,
        *,
        after: str,
        rows: Select[T],
        version: int = 1,
        batch_size: int = 1000,
        rate: Rate | None = None,
        environments: set[str] | frozenset[str] | None = None,
        on_error: OnError = Stop(),  # noqa: B008 - frozen
    ) -> Callable[[Callable[[JobSession, Sequence[T]], None]], BackfillSpec]:
        """Declare the decorated function as the backfill *name*.

        It is called with the rows of one batch and a session; what it changes is
        committed together with the place reached. It must not commit.

        :param after: the full id of the revision that must be applied before.
        :param rows: a select of one mapped class; a row that was changed must not match
         it any more.
        :param version: raise it when the change itself changes.

        Bad options raise a :exc:`.DeclarationError`.
        """

        def decorate(fn: Callable[[JobSession, Sequence[T]], None], /) -> BackfillSpec:
            return self._add_backfill(
                make_spec(
                    name,
                    after=after,
                    rows=rows,
                    function=fn,
                    version=version,
                    batch_size=batch_size,
                    rate=rate,
                    environments=environments,
                    on_error=on_error,
                    declared_at=f"{fn.__module__}:{fn.__code__.co_firstlineno}",
                )
            )

        return decorate

    def backfill_statement(
        self,
        name: str,
        *,
        after: str,
        statement: Update | Delete,
        version: int = 1,
        batch_size: int = 1000,
        rate: Rate | None = None,
        environments: set[str] | frozenset[str] | None = None,
    ) -> BackfillSpec:
        """Declare *statement* as the backfill *name*; it is run a range of keys a time.

        The options are those of :meth:`.backfill`. Its ``where`` must not match a row
        that it has changed.
        """
        return self._add_backfill(
            make_spec(
                name,
                after=after,
                statement=statement,
                version=version,
                batch_size=batch_size,
                rate=rate,
                environments=environments,
                on_error=Stop(),
                declared_at=caller(),
            )
        )

    def _add_backfill(self, spec: BackfillSpec) -> BackfillSpec:
        self._backfills.add(spec)
        return spec
