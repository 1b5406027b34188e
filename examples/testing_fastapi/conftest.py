"""Every test in a transaction that is rolled back."""

import asyncio
from collections.abc import AsyncIterator

import attrs
import pytest
from httpx import ASGITransport, AsyncClient
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

import sqla_jobs
from examples.testing_fastapi.app import URL, Base, Mailer, app, get_session
from sqla_jobs.asyncio import AsyncJobSession
from sqla_jobs.testing import rolled_back_async

Factory = async_sessionmaker[AsyncJobSession]


@attrs.define
class FakeMailer(Mailer):
    """Keeps what it was to send; fails as often as it is told to."""

    sent: list[tuple[str, str]] = attrs.field(factory=list)
    failures: int = 0

    async def send(self, to: str, text: str) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the mail server is away")
        self.sent.append((to, text))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def tables() -> None:
    async def create() -> None:
        engine = create_async_engine(URL)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
            await connection.run_sync(sqla_jobs.metadata.create_all)
        await engine.dispose()

    asyncio.run(create())


@pytest.fixture
async def factory(tables: None) -> AsyncIterator[Factory]:
    engine = create_async_engine(URL)  # of this test's loop
    async with rolled_back_async(engine) as factory:
        yield factory
    await engine.dispose()


@pytest.fixture
async def client(factory: Factory) -> AsyncIterator[AsyncClient]:
    async def get_test_session() -> AsyncIterator[AsyncJobSession]:
        async with factory.begin() as session:
            yield session

    app.dependency_overrides[get_session] = get_test_session
    transport = ASGITransport(app)
    async with AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client
    app.dependency_overrides.clear()


@pytest.fixture
def mailer() -> FakeMailer:
    return FakeMailer()
