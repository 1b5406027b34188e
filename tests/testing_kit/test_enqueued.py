"""``assert_enqueued`` and ``refute_enqueued``, and what a developer reads of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import attrs
import pydantic
import pytest

from sqla_jobs import NO_TENANT, Jobs, Sensitive, enqueue
from sqla_jobs.models import Job
from sqla_jobs.testing import assert_enqueued, drain, refute_enqueued, rolled_back_async
from tests.testing_kit.shop import Mail, Work, fan, jobs, mail, visit

pytestmark = pytest.mark.each_kind

mine = Jobs()


@attrs.frozen
class Card:
    number: Sensitive[str]
    year: int


@attrs.frozen
class Pay:
    order: int
    card: Card


@dataclass
class Note:
    text: str


class Model(pydantic.BaseModel):
    size: int


def declare(name, type_):
    return mine.declare(
        name,
        input=type_,
        output=None,
        idempotency_key=lambda i: "k",
        tenant=NO_TENANT,
    )


pay, note = declare("pay", Pay), declare("note", Note)
model, number = declare("model", Model), declare("number", int)


def refusal(function, session, job, **subset) -> str:
    with pytest.raises(AssertionError) as caught:
        function(session, job, **subset)
    return str(caught.value)


def test_a_pending_job_is_found_before_any_commit(factory):
    with factory() as session:
        session.enqueue(mail, Mail(user_id=1))
        queued = session.enqueue(mail, Mail(user_id=2))
        job = assert_enqueued(session, mail, user_id=2)
        assert isinstance(job, Job)
        assert (job.id, job.state, job.input) == (queued.id, "ready", {"user_id": 2})
        assert_enqueued(session, mail)
        refute_enqueued(session, mail, user_id=3)
        refute_enqueued(session, visit)


def test_the_newest_of_several_is_returned_whatever_its_state(factory):
    with factory.begin() as session:
        session.enqueue(visit, Work("a", 1))
        session.enqueue(visit, Work("b", 1))
    with factory() as session:
        assert assert_enqueued(session, visit, n=1).state == "ready"
        drain(factory, jobs)
        newest = assert_enqueued(session, visit, n=1)
        assert (newest.key, newest.state) == ("b", "succeeded")


def test_every_kind_of_input_is_compared_by_its_fields(factory):
    with factory() as session:
        session.enqueue(pay, Pay(7, Card("4111", 2030)))
        session.enqueue(note, Note("hello"))
        session.enqueue(model, Model(size=3))
        session.enqueue(number, 5)
        assert_enqueued(session, pay, card=Card("4111", 2030), order=7)
        assert_enqueued(session, note, text="hello")
        assert_enqueued(session, model, size=3)
        assert assert_enqueued(session, number).input == 5
        refute_enqueued(session, pay, card=Card("4111", 2031))


def test_a_field_that_does_not_exist_is_a_mistake_of_the_test(factory):
    with factory() as session:
        session.enqueue(mail, Mail(user_id=1))
        with pytest.raises(TypeError, match="no field uid.*its fields are user_id"):
            refute_enqueued(session, mail, uid=1)
        with pytest.raises(TypeError, match="has no fields"):
            assert_enqueued(session, number, value=1)


def test_the_message_shows_what_is_there_instead(factory):
    with factory() as session:
        assert refusal(assert_enqueued, session, mail, user_id=2) == (
            "no job 'mail' with user_id=2 is enqueued: nothing is. "
            "(Jobs of another session are seen once it has committed.)"
        )
        session.enqueue(fan, Work("f", 9))
        assert refusal(assert_enqueued, session, mail) == (
            "no job 'mail' is enqueued; these are:\n  fan ready tenant='9' key='f'"
        )
        session.enqueue(mail, Mail(user_id=1))
        assert refusal(assert_enqueued, session, mail, user_id=2) == (
            "no job 'mail' with user_id=2 is enqueued; of that name are:\n"
            "  mail ready key='1' {\"user_id\": 1} (differs in user_id)\n"
            "and 1 of other names"
        )
        assert refusal(refute_enqueued, session, mail, user_id=1) == (
            "1 of 'mail' with user_id=1 should not be enqueued:\n"
            "  mail ready key='1' {\"user_id\": 1}"
        )


def test_no_message_shows_a_sensitive_value(factory):
    with factory() as session:
        session.enqueue(visit, Work("a", token="s3cret"))
        assert_enqueued(session, visit, token="s3cret")
        told = refusal(assert_enqueued, session, visit, token="pa55word")
        assert "token='***'" in told
        assert '"token": "***"' in told
        assert "s3cret" not in told
        assert "pa55word" not in told
        session.enqueue(pay, Pay(7, Card("4111", 2030)))
        told = refusal(assert_enqueued, session, pay, card=Card("4222", 2030))
        assert "card=<Card>" in told
        assert '{"number": "***", "year": 2030}' in told
        assert "4111" not in told
        assert "4222" not in told


def test_a_long_list_and_a_long_input_are_cut(factory):
    with factory() as session:
        for n in range(25):
            session.enqueue(visit, Work(f"{n}-" + "x" * 500, n))
        told = refusal(assert_enqueued, session, visit, n=99)
        assert "... 5 older ones" in told
        assert max(len(line) for line in told.splitlines()) < 1000
        assert len(told.splitlines()) == 22
        told = refusal(assert_enqueued, session, mail)
        assert "... 5 older ones" in told
        assert len(told.splitlines()) == 22
        assert "key='24-x" in told


def test_a_plain_session_and_the_function_enqueue_are_seen_too(engine):
    from sqlalchemy.orm import Session

    with Session(engine) as session:
        enqueue(session, mail, Mail(user_id=1))
        assert_enqueued(session, mail, user_id=1)


def test_an_async_session_is_asked_through_run_sync(async_engine):
    async def test():
        async with rolled_back_async(async_engine) as factory, factory() as session:
            session.enqueue(mail, Mail(user_id=1))
            job = await session.run_sync(assert_enqueued, mail, user_id=1)
            assert job.input == {"user_id": 1}
            with pytest.raises(TypeError, match="run_sync"):
                assert_enqueued(session, mail)

    asyncio.run(test())
