"""Transactions that are rolled back, as users write them by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from sqla_jobs import JobSession

# Also where the package was not installed, so that pytest knows no entry point of it.
from sqla_jobs_pytest import sqla_jobs_clock as sqla_jobs_clock  # noqa: PLC0414
from tests.testing_kit import shop


@pytest.fixture
def factory(engine: Engine) -> Iterator[sessionmaker[JobSession]]:
    with engine.connect() as connection, connection.begin() as outer:
        yield sessionmaker(
            connection, class_=JobSession, join_transaction_mode="create_savepoint"
        )
        outer.rollback()


@pytest.fixture(autouse=True)
def nothing_entered() -> None:
    shop.entered.clear()
