"""What text the databases can hold: no NUL character and no lone surrogate."""

from __future__ import annotations

from typing import Final

from sqla_jobs.exc import InvalidOptionError

MAX_NAME_LENGTH: Final = 200
"""The longest name of a job or queue, in characters."""


def bad_character(text: str) -> str | None:
    """Return what keeps *text* out of the database, in words; ``None`` when nothing does.

    PostgreSQL holds no NUL in text and jsonb, and UTF-8 has no lone surrogates: both
    are refused at the call instead of at the commit.
    """
    if "\x00" in text:
        return "a NUL character"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "a lone surrogate"
    return None


def check_name(value: object, *, option: str, job: str | None = None) -> str:
    """Return *value* if it can name a job or queue, else raise :exc:`.InvalidOptionError`.

    A name is 1 to 200 printable characters without a space at either end: it stands in
    logs, tables and commands.
    """
    if not isinstance(value, str):
        raise InvalidOptionError(option, f"is a {type(value).__name__}, not a str", job)
    if not value or len(value) > MAX_NAME_LENGTH:
        raise InvalidOptionError(
            option, f"has {len(value)} characters: give 1 to {MAX_NAME_LENGTH}", job
        )
    if not value.isprintable() or value != value.strip():
        raise InvalidOptionError(
            option, f"is {value!r}: give printable characters, no space at an end", job
        )
    return value
