"""Errors become text that can be stored, whatever they are."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, StatementError

from sqla_jobs.worker import errors


def caught(error):
    try:
        raise error
    except BaseException as raised:
        return raised


@pytest.mark.covers("T58")
@pytest.mark.parametrize(
    "message",
    [
        "x" * 10_000_000,
        "a\x00b" * 10,
        "\ud800 lone",
        "é" * 9_000,
        "\U0001d4b3" * 5_000,
        "",
    ],
    ids=["10 MB", "NUL", "surrogate", "2 bytes each", "4 bytes each", "empty"],
)
def test_t58_any_text_is_bounded_and_clean(message):
    text = errors.error_text(caught(ValueError(message)))
    raw = text.encode()  # strict: no surrogate is left
    assert len(raw) <= errors.MAX_BYTES
    assert b"\x00" not in raw
    assert text.startswith("Traceback")
    assert "ValueError" in text


def test_a_long_error_keeps_its_head_and_its_tail():
    text = errors.error_text(caught(ValueError("first" + "x" * 100_000 + "last")))
    assert text.startswith("Traceback")
    assert "ValueError: first" in text
    assert text.rstrip().endswith("last")
    assert "bytes cut" in text


class Unprintable(Exception):
    def __str__(self):
        raise SystemExit("str")

    __repr__ = __str__


def test_an_error_whose_text_raises_is_recorded():
    text = errors.error_text(caught(Unprintable()))
    assert "Unprintable" in text


def test_the_type_is_bounded():
    kind = type("K" * 1000, (Exception,), {})
    name = errors.error_type(kind())
    assert len(name.encode()) <= errors.MAX_TYPE


class FakeDiag:
    message_detail = "Failing row contains (1, hunter2)."
    message_context = None


class DriverError(Exception):
    sqlstate = "23502"
    diag = FakeDiag()


def chained():
    driver = DriverError("null value\nDETAIL:  Failing row contains (1, hunter2).")
    error = IntegrityError("insert into card values (%(a)s)", {"a": "hunter2"}, driver)
    try:
        try:
            raise driver
        except DriverError as cause:
            raise error from cause
    except IntegrityError as inner:
        try:
            raise ExceptionGroup("many", [inner, ValueError("other")]) from inner
        except ExceptionGroup as outer:
            return outer


def test_statement_parameters_and_quoted_rows_never_get_in():
    """Not even from a cause, or from a member of a group."""
    text = errors.error_text(chained())
    assert "insert into card" in text
    assert "null value" in text
    assert "hunter2" not in text


def database_error(kind, code, *, invalidated=False):
    orig = type("Orig", (Exception,), {"sqlstate": code})("it")
    return kind("select 1", {}, orig, connection_invalidated=invalidated)


def test_what_an_error_means():
    assert errors.is_serialization_failure(database_error(OperationalError, "40001"))
    assert errors.is_serialization_failure(database_error(OperationalError, "40P01"))
    assert not errors.is_serialization_failure(database_error(DBAPIError, "23505"))

    assert errors.is_connection_loss(database_error(OperationalError, None))
    assert errors.is_connection_loss(database_error(OperationalError, "57P01"))
    assert errors.is_connection_loss(
        database_error(DBAPIError, "XX000", invalidated=True)
    )
    assert not errors.is_connection_loss(database_error(OperationalError, "55P03"))
    assert not errors.is_connection_loss(ConnectionError())

    assert errors.is_of_the_values(database_error(DBAPIError, "22P05"))
    assert errors.is_of_the_values(StatementError("no", "select", {}, ValueError()))
    assert errors.is_of_the_values(UnicodeEncodeError("utf-8", "x", 0, 1, "no"))
    assert not errors.is_of_the_values(database_error(DBAPIError, "42501"))
    assert not errors.is_of_the_values(database_error(OperationalError, None))


def test_the_same_trouble_has_the_same_name():
    one = errors.condition_of(database_error(OperationalError, "57P01"))
    same = errors.condition_of(database_error(OperationalError, "57P01"))
    other = errors.condition_of(database_error(OperationalError, "42501"))
    assert one == same != other
