"""The library's own connections: the application's settings, and none of ours in it."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import create_async_engine

from sqla_jobs.queue.connections import own_engine, root_engine

pytestmark = [pytest.mark.conformance, pytest.mark.needs("server")]

LEVEL = text("SHOW transaction_isolation")


@pytest.fixture
def own(request):
    made = []

    def make(engine, **options):
        made.append(own_engine(engine, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


def test_it_connects_as_the_application_does(engine, own):
    """Its connect listeners run: they set passwords that change, for one."""
    seen = []
    event.listen(engine, "do_connect", lambda *args: seen.append("do_connect"))
    event.listen(engine, "connect", lambda *args: seen.append("connect"))
    with own(engine).connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1
    assert seen == ["do_connect", "connect"]


def test_it_reads_committed_rows_whatever_the_application_does(make_engine, own):
    engine = make_engine(isolation_level="SERIALIZABLE")
    with own(engine).connect() as connection:
        assert connection.scalar(LEVEL) == "read committed"
        assert connection.connection.dbapi_connection.prepare_threshold is None
    with engine.connect() as connection:
        assert connection.scalar(LEVEL) == "serializable"
        assert connection.connection.dbapi_connection.prepare_threshold is not None


def test_it_keeps_the_translation_of_schemas(engine, own):
    translated = engine.execution_options(schema_translate_map={None: "elsewhere"})
    options = own(translated).get_execution_options()
    assert options["schema_translate_map"] == {None: "elsewhere"}
    assert root_engine(translated) is engine
    assert root_engine(translated.execution_options(x=1)) is engine


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_an_async_engine_is_served_through_psycopg(pg_url, own, driver):
    async_engine = create_async_engine(pg_url.set(drivername=f"postgresql+{driver}"))
    with own(async_engine.sync_engine).connect() as connection:
        assert connection.dialect.driver == "psycopg"
        assert connection.scalar(LEVEL) == "read committed"
    asyncio.run(async_engine.dispose())


def test_settings_for_asyncpg_are_said_in_psycopgs_words(pg_url, own):
    """As hosted databases' URLs have them; what only tunes asyncpg is left out."""
    settings = {"ssl": "disable", "timeout": "7", "prepared_statement_cache_size": "0"}
    url = pg_url.set(drivername="postgresql+asyncpg").update_query_dict(settings)
    async_engine = create_async_engine(url)
    with own(async_engine.sync_engine).connect() as connection:
        given = connection.connection.dbapi_connection.info.get_parameters()
    assert (given["sslmode"], given["connect_timeout"]) == ("disable", "7")
    asyncio.run(async_engine.dispose())


def test_another_url_can_be_given(engine, databases, own):
    with databases.fresh() as url:
        elsewhere = own(engine, url=url)
        with elsewhere.connect() as connection:
            name = connection.scalar(text("SELECT current_database()"))
        elsewhere.dispose()
    assert name == url.database
