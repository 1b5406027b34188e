"""Sensitive fields: masked in views, silent in errors."""

from __future__ import annotations

import json
from typing import Any, TypedDict

import attrs
import pytest
from pydantic import BaseModel

from sqla_jobs.declare.payload import codec_for
from sqla_jobs.declare.sensitive import Sensitive
from sqla_jobs.exc import PayloadError


@attrs.frozen
class Card:
    number: Sensitive[str]
    holder: str


class Login(TypedDict):
    user: str
    password: Sensitive[str]


class Model(BaseModel):
    key: Sensitive[str]
    open: int = 0


@attrs.frozen
class Payment:
    card: Card
    logins: list[Login]
    by_name: dict[str, Card]
    pair: tuple[int, Sensitive[int]]
    model: Model
    secrets: Sensitive[list[str]]
    keyed: dict[Sensitive[str], int]
    maybe: Sensitive[str] | None = None
    next: Payment | None = None


PAYMENT = Payment(
    card=Card("4242", "Ada"),
    logins=[{"user": "ada", "password": "geheim"}],
    by_name={"main": Card("4242", "Ada")},
    pair=(1, 4242),
    model=Model(key="geheim"),
    secrets=["geheim"],
    keyed={"geheim": 1},
    maybe="geheim",
)
PAYMENT = attrs.evolve(PAYMENT, next=PAYMENT)


def codec(type_: Any):
    return codec_for(type_, what="input", limit=10_000)


def test_sensitive_values_are_masked_wherever_they_stand():
    made = codec(Payment)
    text = made.encode(PAYMENT)
    assert "geheim" in text
    masked = made.mask(json.loads(text))
    shown = json.dumps(masked)
    assert "geheim" not in shown
    assert "4242" not in shown
    assert shown.count("Ada") == 4
    assert masked["pair"] == [1, "***"]
    assert masked["logins"] == [{"user": "ada", "password": "***"}]
    assert masked["next"]["model"] == {"key": "***", "open": 0}


@attrs.frozen
class Cash:
    serial: Sensitive[str]


@attrs.frozen
class Refund:
    of: Refund | Cash | None
    to: Sensitive[str]


def test_members_of_a_union_are_masked_also_where_a_type_holds_itself():
    made = codec(Refund)
    value = Refund(Refund(Cash("geheim"), "geheim"), "geheim")
    assert made.mask(json.loads(made.encode(value))) == {
        "of": {"of": {"serial": "***"}, "to": "***"},
        "to": "***",
    }
    assert made.sensitive_paths == ("of.serial", "to")


def test_masking_leaves_its_argument_alone():
    data = {"number": "4242", "holder": "Ada"}
    assert codec(Card).mask(data) == {"number": "***", "holder": "Ada"}
    assert data == {"number": "4242", "holder": "Ada"}


@pytest.mark.parametrize("data", [None, [], "x", {"number": {"a": 1}}, {"other": 1}])
def test_data_of_another_shape_is_masked_where_it_fits(data):
    masked = codec(Card).mask(data)
    expected = {"number": "***"} if data == {"number": {"a": 1}} else data
    assert masked == expected


def test_the_paths_of_sensitive_values_are_told():
    assert codec(Payment).sensitive_paths == (
        "by_name[*].number",
        "card.number",
        "keyed",
        "logins[*].password",
        "maybe",
        "model.key",
        "pair[1]",
        "secrets",
    )
    assert codec(Sensitive[str]).sensitive_paths == ("",)
    assert codec(int).sensitive_paths == ()


@attrs.frozen
class Strict:
    pin: Sensitive[int] = attrs.field(validator=attrs.validators.gt(0))


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (Card, '{"number":4242,"holder":"x"}'),
        (Strict, '{"pin":-4242}'),
        (Model, '{"key":4242}'),
        (Login, '{"user":"x","password":4242}'),
    ],
)
def test_no_error_quotes_a_sensitive_value(type_, text):
    with pytest.raises(PayloadError) as error:
        codec(type_).decode(text)
    told: BaseException | None = error.value
    while told is not None:
        assert "4242" not in str(told)
        assert "4242" not in repr(told)
        told = told.__cause__
    mistyped: list[Any] = [4242, "x"]
    with pytest.raises(PayloadError) as error:
        codec(Card).encode(Card(*mistyped))
    assert "4242" not in str(error.value)
