"""Pydantic models as inputs and outputs."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from uuid import UUID

import attrs
import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from sqla_jobs.declare.payload import codec_for
from sqla_jobs.exc import PayloadError


class Line(BaseModel):
    day: date
    price: Decimal


class Order(BaseModel):
    id: UUID
    lines: list[Line]
    tags: tuple[str, ...] = ()
    count: int = Field(default=1, alias="howMany")
    parent: Order | None = None


@attrs.frozen
class Holder:
    order: Order
    more: list[Order]


class Secret(BaseModel):
    token: SecretStr


class Hidden(BaseModel):
    shown: int
    hidden: int = Field(default=0, exclude=True)


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int


class Picky(BaseModel):
    word: str

    @field_validator("word")
    @classmethod
    def no_geheim(cls, word: str) -> str:
        if word == "geheim":
            raise ValueError(f"{word} is not allowed")
        return word


def codec(type_: type):
    return codec_for(type_, what="input", limit=10_000)


ORDER = Order(
    id=UUID(int=1),
    lines=[Line(day=date(2030, 1, 1), price=Decimal("1.50"))],
    tags=("a", "b"),
    howMany=7,
)


def test_a_model_comes_back_exactly_also_inside_other_classes():
    made = codec(Order)
    value = ORDER.model_copy(update={"parent": ORDER})
    assert made.decode(made.encode(value)) == value
    held = Holder(ORDER, [ORDER])
    assert codec(Holder).decode(codec(Holder).encode(held)) == held


def test_wrong_types_are_refused_at_the_call_with_their_path():
    bad = ORDER.model_copy(update={"lines": [Line.model_construct(day=1, price=2)]})
    with pytest.raises(PayloadError) as error:
        codec(Holder).encode(Holder(ORDER, [ORDER, bad]))
    assert error.value.path == "input.more[1].lines[0].day"
    with pytest.raises(PayloadError) as error:
        codec(Closed).encode(Closed.model_construct(a="1"))
    assert error.value.path == "input.a"


def test_reading_is_strict_and_names_the_field():
    with pytest.raises(PayloadError) as error:
        codec(Order).decode('{"id":"00000000-0000-0000-0000-000000000001"}')
    assert error.value.path == "input.lines"
    with pytest.raises(PayloadError) as error:
        codec(Closed).decode('{"a":"1"}')
    assert error.value.path == "input.a"


def test_unknown_fields_are_ignored_unless_the_model_forbids_them():
    assert codec(Hidden).decode('{"shown":1,"new":2}') == Hidden(shown=1)
    with pytest.raises(PayloadError):
        codec(Closed).decode('{"a":1,"new":2}')


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Secret(token=SecretStr("geheim")), "input.token"),
        (Hidden(shown=1, hidden=2), "input.hidden"),
    ],
)
def test_a_field_that_does_not_survive_json_is_refused_instead_of_lost(value, path):
    with pytest.raises(PayloadError) as error:
        codec(type(value)).encode(value)
    assert error.value.path == path
    assert "geheim" not in str(error.value)


def test_the_words_of_a_validator_are_not_repeated_since_they_quote_the_value():
    with pytest.raises(PayloadError) as error:
        codec(Picky).decode('{"word":"geheim"}')
    assert error.value.path == "input.word"
    assert "geheim" not in str(error.value)


class SubLine(Line):
    extra: int = 0


def test_a_subclass_of_the_declared_model_is_refused():
    with pytest.raises(PayloadError, match="SubLine"):
        codec(Line).encode(SubLine(day=date(2030, 1, 1), price=Decimal(1)))


@pytest.mark.covers("C98")
def test_c98_a_nul_in_a_model_is_refused_with_its_path():
    with pytest.raises(PayloadError) as error:
        codec(Picky).encode(Picky(word="a\x00b"))
    assert error.value.path == "input.word"
