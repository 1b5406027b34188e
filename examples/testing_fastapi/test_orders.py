"""What the application's own tests say about its jobs."""

import pytest
from httpx import AsyncClient

from examples.testing_fastapi.app import (
    ForOrder,
    Mailer,
    Order,
    jobs,
    remind,
    send_receipt,
)
from examples.testing_fastapi.conftest import Factory, FakeMailer
from sqla_jobs.testing import (
    Clock,
    assert_enqueued,
    drain_async,
    refute_enqueued,
    run_job_async,
)

pytestmark = pytest.mark.anyio
ORDER: dict[str, str | int] = {"email": "ann@example.org", "total": 20}


async def test_an_order_enqueues_its_receipt(
    client: AsyncClient, factory: Factory
) -> None:
    placed = await client.post("/orders", params=ORDER)
    assert placed.status_code == 201
    async with factory() as session:
        await session.run_sync(
            assert_enqueued, send_receipt, order_id=placed.json()["id"]
        )


async def test_a_refused_order_enqueues_nothing(
    client: AsyncClient, factory: Factory
) -> None:
    assert (await client.post("/orders", params={"total": 20})).status_code == 422
    async with factory() as session:
        await session.run_sync(refute_enqueued, send_receipt)


async def test_the_receipt_is_sent_and_the_reminder_a_week_later(
    client: AsyncClient, factory: Factory, mailer: FakeMailer, sqla_jobs_clock: Clock
) -> None:
    await client.post("/orders", params=ORDER)
    fakes = {Mailer: mailer}
    assert (await drain_async(factory, jobs, resources=fakes)).succeeded == 1
    assert mailer.sent == [("ann@example.org", "Thank you: 20 EUR")]
    async with factory() as session:
        await session.run_sync(assert_enqueued, remind)

    sqla_jobs_clock.advance("7d")
    assert (await drain_async(factory, jobs, resources=fakes)).succeeded == 1
    assert mailer.sent[1] == ("ann@example.org", "How do you like it?")


async def test_a_mail_server_that_is_away_costs_a_retry(
    client: AsyncClient, factory: Factory, mailer: FakeMailer, sqla_jobs_clock: Clock
) -> None:
    order_id = (await client.post("/orders", params=ORDER)).json()["id"]
    mailer.failures = 1
    with pytest.raises(ConnectionError):
        await drain_async(factory, jobs, resources={Mailer: mailer})
    sqla_jobs_clock.advance("1m")
    await drain_async(factory, jobs, resources={Mailer: mailer})
    async with factory() as session:
        assert (await session.get_one(Order, order_id)).receipts == 1


async def test_one_handler_alone(factory: Factory, mailer: FakeMailer) -> None:
    async with factory() as session:
        session.add(Order(id=1, email="bob@example.org", total=5))
        await session.flush()
        await run_job_async(
            session, send_receipt, ForOrder(1), resources={Mailer: mailer}
        )
    assert mailer.sent == [("bob@example.org", "Thank you: 5 EUR")]
