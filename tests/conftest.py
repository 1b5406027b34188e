"""Fixtures of all tests: servers, one fresh database per test, processes.

A test that asks for nothing of this stays without a database. Tests are plain
functions; async code runs in ``asyncio.run`` inside them, so that each test shows which
loop its engine lives on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import hypothesis
import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.orm import sessionmaker

from tests.support import waiting
from tests.support.processes import Processes
from tests.support.server import Server, embedded, reachable

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from sqla_jobs import JobSession
    from tests.support.database import Databases
    from tests.support.files import Files

# Examples talk to a database on a shared machine: their time says nothing.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.load_profile("default")

EMBEDDED = {"pg18": 18, "pg16": 16}
SQLITE = "sqlite"
ABILITIES = frozenset(
    {
        "server",  # processes of its own, which can be seen, asked and ended
        "skip_locked",  # locks on rows, stepped over by others; else one writer
        "notify",  # LISTEN and NOTIFY
        "schemas",  # several in one database
        "two_phase",  # PREPARE TRANSACTION
        "aborts",  # after an error a transaction takes nothing but its rollback
        "late_savepoints",  # ones that a plain session opens before its first job
    }
)
"""What a test may need of its database; SQLite has none of these."""
ASYNC = {"sqlite": "sqlite+aiosqlite"}
"""Drivers for async engines; psycopg is both."""
LOCAL = pytest.StashKey[Server | None]()
NAMES: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of servers."""
    parser.addoption(
        "--servers",
        default="pg18,local,sqlite",
        help="comma-separated: where conformance tests run (pg18, pg16, local, sqlite);"
        " the first embedded one serves all other tests",
    )
    parser.addoption(
        "--durable",
        action="store_true",
        help="keep fsync and full-page writes on in the embedded servers",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find out which of the servers asked for are there."""
    asked = config.getoption("--servers").split(",")
    unknown = set(asked) - {*EMBEDDED, "local", SQLITE}
    if unknown or not EMBEDDED.keys() & set(asked):
        msg = (
            f"--servers={','.join(asked)}: one or more of pg18, pg16; and local, sqlite"
        )
        raise pytest.UsageError(msg)
    local = reachable() if "local" in asked else None
    config.stash[LOCAL] = local
    names: list[str] = [n for n in asked if n != "local" or local is not None]
    config.stash[NAMES] = names


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which servers these tests use."""
    names: list[str] = config.stash[NAMES]
    lines = [f"servers: {', '.join(names)} (conformance tests run on all)"]
    local = config.stash[LOCAL]
    if local is not None:
        lines.append(f"local: PostgreSQL {local.version} at {local.url!r}")
    elif "local" in config.getoption("--servers"):
        lines.append(
            "local: no server at 127.0.0.1:5432 that lets root or postgres create"
            " databases; conformance tests run on the embedded one alone"
        )
    return lines


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each conformance test once per server that can do what it needs."""
    if "server" not in metafunc.fixturenames:
        return
    test = metafunc.definition
    names = metafunc.config.stash[NAMES]
    if test.get_closest_marker("conformance") is None:
        if test.get_closest_marker("each_kind") is None:
            return
        served = next(n for n in names if n in EMBEDDED)
        names = [n for n in names if n in {served, SQLITE}]
    needed = {need for mark in test.iter_markers("needs") for need in mark.args}
    if unknown := needed - ABILITIES:
        msg = f"{test.nodeid}: needs {unknown}, which is none of {sorted(ABILITIES)}"
        raise pytest.UsageError(msg)
    if needed or "pg_url" in metafunc.fixturenames:
        names = [n for n in names if n != SQLITE]
    metafunc.parametrize("server", names, indirect=True, scope="function")


@pytest.fixture(scope="session")
def _databases(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[str], Databases | Files]]:
    # Servers start when the first test needs one, and stop with the session.
    from tests.support.database import Databases
    from tests.support.files import Files

    made: dict[str, Databases | Files] = {}
    with ExitStack() as stack:

        def databases(name: str) -> Databases | Files:
            if name not in made and name == SQLITE:
                made[name] = Files()
                stack.callback(made[name].close)
            elif name not in made:
                server = request.config.stash[LOCAL]
                if name in EMBEDDED:
                    durable = request.config.getoption("--durable")
                    run = embedded(EMBEDDED[name], durable=durable)
                    server = stack.enter_context(run)
                assert server is not None
                made[name] = Databases(server)
                stack.callback(made[name].close)
            return made[name]

        yield databases


@pytest.fixture
def databases(
    request: pytest.FixtureRequest,
    server: str,
    _databases: Callable[[str], Databases | Files],
) -> Databases | Files:
    """The maker of databases on this test's server, for tests that need several."""
    return _databases(server)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> str:
    """The name of this test's server: ``pg18``, ``pg16``, ``local`` or ``sqlite``."""
    if hasattr(request, "param"):
        return str(request.param)
    return next(n for n in request.config.stash[NAMES] if n in EMBEDDED)


@pytest.fixture
def url(databases: Databases | Files) -> Iterator[URL]:
    """A fresh database with our tables and the shop's, dropped after the test."""
    with databases.fresh() as url:
        yield url


@pytest.fixture
def async_url(url: URL) -> URL:
    """The same for an async driver."""
    return url.set(drivername=ASYNC.get(url.drivername, url.drivername))


@pytest.fixture
def pg_url(url: URL) -> URL:
    """The same, of a server: a test that asks for it needs one."""
    return url


@pytest.fixture
def empty_url(databases: Databases | Files) -> Iterator[URL]:
    """A fresh database without any table."""
    with databases.fresh(empty=True) as url:
        yield url


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    """An engine on the test's database."""
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def second_engine(url: URL) -> Iterator[Engine]:
    """Another pool on the same database: what is seen through it was committed."""
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def make_engine(url: URL) -> Iterator[Callable[..., Engine]]:
    """Make engines with options of their own on the test's database."""
    with ExitStack() as stack:

        def make(**options: object) -> Engine:
            engine = create_engine(url, **options)
            stack.callback(engine.dispose)
            return engine

        yield make


@pytest.fixture
def async_engine(async_url: URL) -> Iterator[AsyncEngine]:
    """An async engine on the test's database; use it inside one ``asyncio.run``."""
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(async_url)
    yield engine
    # psycopg closes a connection without waiting for the server, so it does not
    # matter that the loop which opened it has gone.
    asyncio.run(engine.dispose())


@pytest.fixture
def Session(engine: Engine) -> sessionmaker[JobSession]:
    """Sessions with our methods on the test's database."""
    from sqla_jobs import JobSession

    return sessionmaker(engine, class_=JobSession)


@pytest.fixture
def env(url: URL) -> Mapping[str, str]:
    """What a process needs in its environment to find the test's database."""
    return {"SQLA_JOBS_DATABASE_URL": url.render_as_string(hide_password=False)}


@pytest.fixture
def processes(env: Mapping[str, str]) -> Iterator[Processes]:
    """Start processes on the test's database; all are reaped at the end."""
    with Processes(env) as processes:
        yield processes


@pytest.fixture
def wait_until() -> Callable[..., object]:
    """:func:`tests.support.waiting.wait_until`, for tests that import nothing."""
    return waiting.wait_until


@pytest.fixture
def wait_for_lock() -> Callable[..., list[int]]:
    """:func:`tests.support.waiting.wait_for_lock`, for tests that import nothing."""
    return waiting.wait_for_lock
