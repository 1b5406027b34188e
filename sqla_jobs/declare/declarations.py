"""What a registry holds by name, and shares with those that include it."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from sqla_jobs.exc import JobNameTakenError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Named(Protocol):
    """A declaration."""

    @property
    def name(self) -> str:
        """Its unique name."""

    @property
    def declared_at(self) -> str:
        """``module:line`` of it."""


N = TypeVar("N", bound=Named)


class Declarations(Generic[N]):
    """Declarations of one kind by their names, those of included registries too."""

    def __init__(self) -> None:
        self._named: dict[str, N] = {}
        self._included_by: list[Declarations[N]] = []
        self.view: Mapping[str, N] = MappingProxyType(self._named)
        """All of them; live."""

    def add(self, spec: N) -> None:
        """Add *spec*, here and wherever this is included.

        :raises JobNameTakenError: its name is taken in one of these places.
        """
        self.check_free(spec)
        self._named[spec.name] = spec
        for parent in self._included_by:
            parent.add(spec)

    def check_free(self, spec: N) -> None:
        """Raise :exc:`.JobNameTakenError` when *spec* cannot be added."""
        taken = self._named.get(spec.name)
        if taken is not None and taken is not spec:
            raise JobNameTakenError(spec.name, taken.declared_at, spec.declared_at)
        for parent in self._included_by:
            parent.check_free(spec)

    def include(self, other: Declarations[N]) -> None:
        """Add those of *other*, and from now on what is added there."""
        other._included_by.append(self)
        for spec in other.view.values():
            self.add(spec)

    def is_included_by(self, other: Declarations[N]) -> bool:
        """Whether *other* holds these, directly or through a third."""
        return any(
            parent is other or parent.is_included_by(other)
            for parent in self._included_by
        )


def caller() -> str:
    """Return ``module:line`` of the nearest frame outside of ``sqla_jobs.declare``."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith("sqla_jobs.declare"):
            break
        frame = frame.f_back
    return f"{frame.f_globals.get('__name__')}:{frame.f_lineno}"
