"""What every error of this library shares."""

from __future__ import annotations

from typing import ClassVar


class JobsError(Exception):
    """Base of every error of this library; ``code`` names its documentation section."""

    code: ClassVar[str] = "base"

    def __str__(self) -> str:
        """Return the sentence, followed by the code to look up."""
        return f"{super().__str__()} [sqla_jobs:{self.code}]"

    def __reduce__(self) -> tuple[object, ...]:
        # Exception pickles as cls(*args), but our constructors take facts: rebuild
        # without calling them.
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(
    cls: type[JobsError], args: tuple[object, ...], facts: dict[str, object]
) -> JobsError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(facts)
    return error
