from __future__ import annotations

import pytest
from sqlalchemy import insert

from tests.backfills.tables import Base, Price


@pytest.fixture
def tables(engine):
    Base.metadata.create_all(engine)


@pytest.fixture
def prices(engine, tables):
    """Fifty-five rows without cents."""
    rows = [{"id": i, "amount": i, "changes": 0} for i in range(55)]
    with engine.begin() as connection:
        connection.execute(insert(Price), rows)
    return rows
