"""The example applications' own suites pass, in a process of their own."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import create_engine, inspect, text

from tests.support.plugin import run_suite
from tests.support.tree import ROOT

# The URL's driver on SQLite; psycopg is both kinds.
EXAMPLES = {"testing_fastapi": "sqlite+aiosqlite", "testing_flask": "sqlite"}


@pytest.mark.each_kind
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_suite_of_an_example_passes_and_leaves_no_row(example, empty_url):
    given = empty_url
    if given.get_backend_name() == "sqlite":
        given = given.set(drivername=EXAMPLES[example])
    url = given.render_as_string(hide_password=False)
    path = str(ROOT / "examples" / example)
    done = run_suite("-q", path, cwd=ROOT, env={"SHOP_DATABASE_URL": url})
    assert re.search(r"^5 passed", done.stdout, re.MULTILINE), done.stdout + done.stderr
    engine = create_engine(empty_url)
    with engine.connect() as connection:
        tables = inspect(connection).get_table_names()
        counted = {
            name: connection.scalar(text(f"select count(*) from {name}"))
            for name in tables
            if name != "sqla_meta"
        }
    engine.dispose()
    assert len(counted) > 5
    assert {name: count for name, count in counted.items() if count} == {}
