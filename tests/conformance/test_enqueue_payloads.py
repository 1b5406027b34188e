"""Inputs and keys at the call of enqueue: exact, or refused there with the place."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import attrs
import pytest

from sqla_jobs import NO_TENANT, Jobs
from sqla_jobs.exc import IdempotencyKeyRequiredError, PayloadError
from sqla_jobs.models import Job
from tests.support.enqueuing import Work, keys, orders, stored, work
from tests.support.fleet import Fleet
from tests.support.rows import add_job
from tests.support.shop import Order

pytestmark = pytest.mark.conformance
jobs = Jobs()


class Colour(Enum):
    RED = "red"


@attrs.frozen
class Part:
    price: Decimal
    colour: Colour


@attrs.frozen
class Rich:
    key: str
    at: datetime
    on: date
    id: uuid.UUID
    parts: tuple[Part, ...]
    counts: dict[str, int]
    note: str | None = None
    extra: Any = None


rich = jobs.declare(
    "shop.rich",
    input=Rich,
    output=int,
    idempotency_key=lambda i: i.key,
    tenant=NO_TENANT,
)
WHOLE = Rich(
    key="k",
    at=datetime(2026, 11, 30, 12, 30, 15, 123456, tzinfo=UTC),
    on=date(2026, 2, 28),
    id=uuid.UUID(int=7),
    parts=(Part(Decimal("0.10"), Colour.RED),),
    counts={"é 🐘": 2**63},
)


@pytest.mark.covers("C100")
def test_an_input_comes_back_from_the_database_as_it_was(Session, second_engine):
    with Session.begin() as session:
        session.enqueue(rich, WHOLE)
    fleet = Fleet(second_engine)
    (claimed,) = fleet.claim(fleet.start())
    assert rich.input_codec.decode(claimed.input) == WHOLE


@pytest.mark.covers("C98", "C100")
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"note": "x\x00y"}, "note"),
        ({"note": "\ud800"}, "note"),
        ({"counts": {"a\x00": 1}}, "counts"),
        ({"counts": {1: 1}}, "counts"),
        ({"counts": {"a": 1.5}}, "counts"),
        ({"note": b"bytes"}, "note"),
        ({"on": "2026-02-28"}, "on"),
        ({"parts": (Part("0.10", Colour.RED),)}, "parts"),
        ({"parts": [None]}, "parts"),
    ],
    ids=str,
)
def test_what_is_not_exactly_its_type_is_refused_at_the_call_with_its_place(
    Session, second_engine, change, path
):
    with Session() as session:
        session.add(Order(id=1, org_id=1))
        with pytest.raises(PayloadError, match=path):
            session.enqueue(rich, attrs.evolve(WHOLE, **change))
        session.commit()
    assert orders(second_engine) == [1]
    assert keys(second_engine) == []


@pytest.mark.covers("C98")
def test_a_key_that_no_database_can_hold_is_refused_at_the_call(Session, second_engine):
    with Session() as session:
        for key in ("a\x00b", "\ud800"):
            with pytest.raises(PayloadError):
                session.enqueue(work, Work(key))
        with pytest.raises(IdempotencyKeyRequiredError):
            session.enqueue(work, Work(""))
        session.commit()
    assert keys(second_engine) == []


@pytest.mark.covers("C103")
@pytest.mark.parametrize("size", [7_990, 8_000, 8_001, 200_000])
def test_an_input_below_the_limit_is_stored_whatever_its_size(
    Session, second_engine, size
):
    """Hints carry no input: the limit of a notification is not ours."""
    text = "é" * (size // 2)
    with Session.begin() as session:
        session.enqueue(rich, attrs.evolve(WHOLE, note=text))
    assert stored(second_engine, "k").input["note"] == text


@pytest.mark.covers("C103")
@pytest.mark.parametrize("size", [262_144, 20_000_000])
def test_an_input_above_the_limit_is_refused_at_the_call(Session, second_engine, size):
    with Session() as session:
        with pytest.raises(PayloadError) as caught:
            session.enqueue(rich, attrs.evolve(WHOLE, note="x" * size))
        session.commit()
    assert "262" in str(caught.value) or "256" in str(caught.value)
    assert keys(second_engine) == []


# --- keys ------------------------------------------------------------------------------


@pytest.mark.covers("C16")
@pytest.mark.parametrize(
    ("one", "two"),
    [("1", "1.0"), ("1", "True"), ("é", "e\u0301"), ("a", "A"), ("a", "a "), ("", " ")],
    ids=str,
)
def test_keys_that_differ_stay_different(Session, second_engine, one, two):
    """Nothing is normalised: a key is the text that the declaration computed."""
    with Session.begin() as session:
        for key in (f"k{one}", f"k{two}"):
            session.enqueue(work, Work(key))
    assert len(keys(second_engine)) == 2


@pytest.mark.covers("C16")
def test_long_keys_are_hashed_and_still_one_identity(Session, second_engine):
    long = "é" * 5_000
    with Session.begin() as session:
        session.enqueue(work, Work(long))
        session.enqueue(work, Work(f"{long}!"))
    with Session.begin() as session:
        again = session.enqueue(work, Work(long))
    assert again.outcome == "kept"
    found = keys(second_engine)
    assert len(found) == 2
    assert all(len(key.encode()) <= 200 for key in found)


# --- foreign rows ----------------------------------------------------------------------

FOREIGN = {
    "os.system": "echo pwned",
    "builtins:eval": "__import__('os')",
    "subprocess.run": {"py/object": "subprocess.Popen", "args": ["touch", "/tmp/x"]},
    "pickle.loads": "gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOU",
    "yaml": "!!python/object/apply:os.system ['id']",
    "attrs": {"__class__": "os.system", "__reduce__": ["id"]},
}


@pytest.mark.covers("C125")
def test_rows_with_foreign_names_are_only_data_to_a_claim(engine, second_engine):
    """Text comes back as it was stored; what it means is the registry's to say."""
    with second_engine.begin() as connection:
        for name, payload in FOREIGN.items():
            add_job(connection, name=name, input=payload)
    fleet = Fleet(engine)
    claimed = {c.name: c for c in fleet.claim(fleet.start())}
    assert claimed.keys() == FOREIGN.keys()
    for name, payload in FOREIGN.items():
        assert isinstance(claimed[name].input, str)
        assert stored_input(engine, claimed[name].id) == payload


@pytest.mark.covers("C125")
def test_a_worker_that_does_not_know_a_name_leaves_its_row(engine, second_engine):
    with second_engine.begin() as connection:
        add_job(connection, name="os.system")
    fleet = Fleet(engine)
    assert fleet.claim(fleet.start(), unknown=["os.system"]) == []


def stored_input(engine, job_id):
    from sqlalchemy.orm import Session

    with Session(engine) as session:
        return session.get_one(Job, uuid.UUID(job_id)).input
