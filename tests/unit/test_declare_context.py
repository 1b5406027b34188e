"""What a handler sees of its attempt."""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest

from sqla_jobs.declare.context import AttemptState, JobContext, JobFacts
from sqla_jobs.exc import (
    JobAbortedError,
    JobTimeoutError,
    LeaseLostError,
    ResourceMissingError,
)

JOB_ID = uuid.UUID("0192d3c4-0000-7000-8000-000000000001")


@attrs.frozen
class Claim:
    id: uuid.UUID | str = JOB_ID
    name: str = "mail.welcome"
    tenant: str = "acme"
    queue: str = "mail"
    attempt: int = 2
    enqueued_by: str | None = "user:42"


class Gateway:
    pass


class Clock:
    pass


def context(open_session: Any) -> JobContext:
    return JobContext(Claim(), AttemptState(), {}, open_session)


def test_the_facts_are_those_of_the_claim():
    deadline = datetime(2030, 1, 1, tzinfo=UTC)
    facts = JobFacts(Claim(), AttemptState(deadline), {})
    assert facts.job_id == JOB_ID
    assert (facts.name, facts.tenant, facts.queue) == ("mail.welcome", "acme", "mail")
    assert (facts.attempt, facts.enqueued_by) == (2, "user:42")
    assert facts.deadline == deadline
    assert not facts.cancelled


def test_the_id_is_a_uuid_also_when_the_claim_holds_its_text():
    assert JobFacts(Claim(id=str(JOB_ID)), AttemptState(), {}).job_id == JOB_ID


def test_without_a_tenant_the_tenant_is_none():
    assert JobFacts(Claim(tenant=""), AttemptState(), {}).tenant is None


def test_a_cancel_is_seen_and_raised():
    state = AttemptState()
    facts = JobFacts(Claim(), state, {})
    facts.raise_if_cancelled()

    state.cancel_reason, state.cancelled = "customer left", True

    assert facts.cancelled
    with pytest.raises(JobAbortedError) as raised:
        facts.raise_if_cancelled()
    assert raised.value.reason == "customer left"


@pytest.mark.parametrize(
    "abort",
    [JobTimeoutError("mail.welcome", timedelta(seconds=3)), LeaseLostError(JOB_ID, 4)],
)
def test_what_aborted_the_attempt_goes_before_a_cancel(abort):
    state = AttemptState()
    state.cancelled, state.abort = True, abort
    facts = JobFacts(Claim(), state, {})
    assert facts.cancelled
    with pytest.raises(type(abort)) as raised:
        facts.raise_if_cancelled()
    assert raised.value is abort


def test_a_lost_lease_alone_counts_as_cancelled():
    state = AttemptState()
    state.abort = LeaseLostError(JOB_ID, 4)
    assert JobFacts(Claim(), state, {}).cancelled


def test_a_resource_is_what_the_lifespan_gave_for_its_type():
    gateway = Gateway()
    facts = JobFacts(Claim(), AttemptState(), {Gateway: gateway})
    assert facts.resource(Gateway) is gateway
    with pytest.raises(ResourceMissingError, match="Clock.*Gateway"):
        facts.resource(Clock)
    with pytest.raises(ResourceMissingError, match="nothing"):
        JobFacts(Claim(), AttemptState(), {}).resource(Clock)


def test_log_records_carry_the_attempt(caplog):
    facts = JobFacts(Claim(tenant=""), AttemptState(), {})
    with caplog.at_level(logging.INFO, "sqla_jobs.job"):
        facts.log.info("sent %s", "it", extra={"to": "a@b"})
    (record,) = caplog.records
    assert record.name == "sqla_jobs.job"
    assert record.getMessage() == "sent it"
    told = {
        name: vars(record)[name]
        for name in ("job_id", "job_name", "attempt", "tenant", "to")
    }
    assert told == {
        "job_id": str(JOB_ID),
        "job_name": "mail.welcome",
        "attempt": 2,
        "tenant": None,
        "to": "a@b",
    }
    assert facts.log is facts.log


def test_the_session_is_opened_once_and_only_when_it_is_used():
    opened: list[object] = []

    def open_session() -> object:
        opened.append(object())
        return opened[-1]

    ctx = context(open_session)
    assert ctx.session_opened is None
    assert opened == []

    assert ctx.session is ctx.session

    assert ctx.session_opened is opened[0]
    assert len(opened) == 1


def test_a_session_that_cannot_be_opened_is_not_taken_for_an_open_one():
    def open_session() -> object:
        raise ConnectionError

    ctx = context(open_session)
    with pytest.raises(ConnectionError):
        _ = ctx.session
    assert ctx.session_opened is None


def test_contexts_hold_nothing_beside_their_slots():
    """One is made per attempt: no dict each."""
    ctx = context(object)
    assert not hasattr(ctx, "__dict__")
    assert not hasattr(AttemptState(), "__dict__")
