"""The library's own connections: a small pool made from the application's engine.

``pool.recreate()`` keeps how the application connects (its URL, its connect arguments,
its connect events such as IAM tokens), and never leaks our settings into its pool.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import Engine, make_url

from sqla_jobs.dialects import bind_arguments, dialect_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import URL


def own_engine(app_engine: Engine, *, url: URL | str | None = None) -> Engine:
    """Return an engine of our own on the database of *app_engine*; connects lazily.

    On PostgreSQL: READ COMMITTED (or what ``execution_options(isolation_level=...)``
    makes of it), and statements never prepared by the server (a cached generic plan
    costs 40 ms where a fresh one costs 0.7, and poolers break on it). On SQLite: WAL, a
    busy time-out, transactions that begin with their right to write. Parameters are
    hidden from logs. An engine of another driver, or an async one, is served through
    psycopg or the standard library with the same URL; connect arguments that are not in
    the URL do not come along then: give *url* in that case.

    :raises DatabaseUnsupportedError: the queue cannot live in that database.
    """
    dialect = dialect_named(app_engine.dialect)
    driver = dialect.own_driver
    if url is None and _can_share_pool(app_engine, driver):
        engine = Engine(
            app_engine.pool.recreate(),
            app_engine.dialect,
            app_engine.url,
            hide_parameters=True,
        )
    else:
        target = make_url(url) if url is not None else app_engine.url
        engine = create_engine(_for_driver(target, driver), hide_parameters=True)
    dialect.arrange(engine)
    options = app_engine.get_execution_options()
    translation = options.get("schema_translate_map")
    if translation:
        return engine.execution_options(schema_translate_map=translation)
    return engine


_ASYNCPG_TO_LIBPQ: Final[dict[str, str | None]] = {
    "ssl": "sslmode",
    "timeout": "connect_timeout",
    # What only tunes asyncpg itself.
    "command_timeout": None,
    "max_cached_statement_lifetime": None,
    "max_cacheable_statement_size": None,
    "prepared_statement_cache_size": None,
    "prepared_statement_name_func": None,
    "statement_cache_size": None,
}
"""Settings in a URL for asyncpg, as libpq calls them."""


def _for_driver(url: URL, driver: str) -> URL:
    query = dict(url.query)
    if url.get_driver_name() == "asyncpg":
        for name in _ASYNCPG_TO_LIBPQ.keys() & query.keys():
            value, other = query.pop(name), _ASYNCPG_TO_LIBPQ[name]
            if other is not None:
                query[other] = value
    return url.set(drivername=f"{url.get_backend_name()}+{driver}", query=query)


def root_engine(engine: Engine) -> Engine:
    """Return the engine that *engine* was made from by ``execution_options``, if any.

    The two share their pool, and whatever listens to the first hears the second: to
    listen to both is to hear everything twice.
    """
    while (parent := getattr(engine, "_proxied", None)) is not None:
        engine = parent
    return engine


def renew_pool(engine: Engine) -> None:
    """Let every connection that *engine*'s pool holds be replaced at its next checkout.

    What SQLAlchemy does by itself when a statement meets a lost connection. Unlike
    ``dispose()`` it leaves what is checked out to its pool, and serves async engines
    from any thread.
    """
    vars(engine.pool)["_invalidate_time"] = time.time()  # noqa: TID251 - what the pool compares it with


def _can_share_pool(engine: Engine, driver: str) -> bool:
    return engine.dialect.driver == driver and not engine.dialect.is_async


def engine_of(factory: Callable[[], Any]) -> Engine:
    """Return the engine on which the sessions of *factory* keep jobs.

    *factory* makes sessions: a sessionmaker, a scoped_session, an async_sessionmaker,
    or any callable. One session is made, asked and thrown away; no connection is made.
    """
    session = factory()
    sync = getattr(session, "sync_session", session)
    try:
        bind = sync.get_bind(**bind_arguments())
    finally:
        if hasattr(factory, "remove"):  # a scoped_session
            factory.remove()
    engine: Engine = bind.engine if isinstance(bind, Connection) else bind
    return engine
