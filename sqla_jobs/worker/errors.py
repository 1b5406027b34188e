"""Errors of jobs as text that can be stored: bounded, clean, without parameters.

Whatever an exception is (its ``str`` raises, it is 10 MB long, it holds NUL characters
or lone surrogates) it becomes text that every database takes. Values that were sent to a
database never get in: SQLAlchemy is told to hide the parameters of every statement error
in the chain, and the parts of a driver's message that quote rows are cut out.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    OperationalError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES: Final = 8 * 1024
"""The most that is stored of one error, in bytes of UTF-8: its head and its tail."""
MAX_TYPE: Final = 200
MAX_CHAIN: Final = 20

READ_ONLY: Final = "25006"

_CUT: Final = "\n… {} bytes cut …\n"
_RETRYABLE: Final = frozenset({"40001", "40P01"})
_OF_THE_VALUES: Final = ("22", "23", "54")
# SQLite's: BUSY; IOERR and CANTOPEN; TOOBIG, CONSTRAINT and MISMATCH.
_BUSY: Final = 5
_FILE_LOST: Final = frozenset({10, 14})
_REFUSED_VALUES: Final = frozenset({18, 19, 20})


def error_type(error: BaseException) -> str:
    """Return the class name of *error*, clean and bounded."""
    return bounded(type(error).__name__, MAX_TYPE)


def error_text(error: BaseException) -> str:
    """Return *error* with its traceback, causes included, as text that can be stored."""
    quoted = []
    for link in chain(error):
        if isinstance(link, StatementError):
            link.hide_parameters = True
        quoted += _quotes(link)
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as failure:
        text = f"{type(error).__name__} (its text raised {type(failure).__name__})"
    for quote in quoted:
        text = text.replace(quote, "(hidden)")
    return bounded(text)


def bounded(text: str, limit: int = MAX_BYTES) -> str:
    """Return *text* without NUL and lone surrogates, cut in the middle at *limit* bytes."""
    raw = text.encode("utf-8", "backslashreplace").replace(b"\x00", b"\\x00")
    if len(raw) <= limit:
        return raw.decode()
    cut = _CUT.format(len(raw) - limit)
    room = max(limit - len(cut.encode()), 0)
    head, tail = raw[: room // 2], raw[len(raw) - (room - room // 2) :]
    return f"{head.decode(errors='ignore')}{cut}{tail.decode(errors='ignore')}"


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield *error*, what caused it and what it groups; bounded, each once."""
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue and len(seen) < MAX_CHAIN:
        link = queue.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        queue += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            queue += link.exceptions


def condition_of(error: BaseException) -> str:
    """Return what kind of trouble *error* is: the same trouble gives the same text."""
    kind = error.orig if isinstance(error, DBAPIError) else error
    code = sqlstate(error) or _sqlite_code(error) or ""
    return f"{type(kind).__qualname__} {code}".rstrip()


def is_of_the_surroundings(error: BaseException) -> bool:
    """Whether *error* tells of the database or the network, and of no line of code."""
    return (
        isinstance(error, DBAPIError | PoolTimeoutError | OSError)
        # The driver's own, where it is used without SQLAlchemy.
        or hasattr(error, "sqlstate")
    )


def is_read_only(error: BaseException) -> bool:
    """Whether the server takes no writes: a standby, or a primary that was demoted."""
    return sqlstate(error) == READ_ONLY


def one_line(error: BaseException) -> str:
    """Return what *error* says for a log: one line, without the statement."""
    orig = error.orig if isinstance(error, DBAPIError) and error.orig else error
    lines = [line.strip() for line in str(orig).splitlines()]
    return "; ".join(filter(None, lines)) or type(orig).__qualname__


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE that the database sent with *error*, if it did."""
    orig = error.orig if isinstance(error, StatementError) else error
    found = getattr(orig, "sqlstate", None)
    return found if isinstance(found, str) else None


def is_serialization_failure(error: BaseException) -> bool:
    """Whether the database ended a transaction so that another could go on."""
    if is_busy(error):
        return True
    return isinstance(error, DBAPIError) and sqlstate(error) in _RETRYABLE


def is_busy(error: BaseException) -> bool:
    """Whether a statement has waited in vain for its turn to write."""
    return _sqlite_code(error) == _BUSY


def _sqlite_code(error: BaseException) -> int | None:
    """Return the primary result code of SQLite, if *error* is one of its."""
    orig = error.orig if isinstance(error, StatementError) else error
    code = getattr(orig, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def is_connection_loss(error: BaseException) -> bool:
    """Whether the connection went away, so that nobody knows what became of a commit."""
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    if (number := _sqlite_code(error)) is not None:
        return number in _FILE_LOST
    code = sqlstate(error)
    lost = isinstance(error, OperationalError | InterfaceError)
    return (lost and code is None) or (code or "").startswith(("08", "57P"))


def is_of_the_values(error: BaseException) -> bool:
    """Whether *error* lies in the values that were sent: trying again cannot help."""
    if not isinstance(error, DBAPIError):
        # The driver or a type refused a value before anything was sent.
        return isinstance(error, StatementError | ValueError | TypeError)
    if (number := _sqlite_code(error)) is not None:
        return number in _REFUSED_VALUES
    code = sqlstate(error)
    if code is None:
        return type(error.orig).__name__ == "DataError"
    return code.startswith(_OF_THE_VALUES)


def _quotes(error: BaseException) -> list[str]:
    """Return what a driver's message quotes of rows and parameters."""
    diag = getattr(error, "diag", None)
    found = [getattr(diag, f"message_{part}", None) for part in ("detail", "context")]
    return [text for text in found if isinstance(text, str) and text]
