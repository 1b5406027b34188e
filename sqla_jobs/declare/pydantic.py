"""Pydantic models in inputs and outputs: the door to an optional dependency.

Nothing is imported: a model brings its own validator and serializer. Both run in
pydantic's strict JSON mode, and what was written is read again at once and compared, so
that a field which does not survive (a ``SecretStr``, an excluded one) is refused at the
call instead of being lost. A model's own ``extra=`` setting decides about unknown fields.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sqla_jobs.declare.strict import Decode, Encode, Problem, wrong

if TYPE_CHECKING:
    from sqla_jobs.declare.shapes import AnyType

# Pydantic quotes what such a validator says, and that may quote the value.
_OWN_WORDS = frozenset({"value_error", "assertion_error"})


def pydantic_hooks(model: AnyType) -> tuple[Encode, Decode]:
    """Return how instances of the pydantic *model* are written and read."""
    names, expected = tuple(model.model_fields), model.__qualname__
    # Both are looked up at each call: pydantic replaces them when a model that waited
    # for a forward reference is complete.

    def decode(data: object, _: object) -> object:
        if type(data) is not dict:
            raise wrong(data, f"the fields of {expected}")
        try:
            # Strict JSON mode reads dates and the like from text; Python mode does not.
            return model.__pydantic_validator__.validate_json(
                json.dumps(data), strict=True, by_name=True
            )
        except ValueError as error:  # pydantic's ValidationError is one
            raise _first_problem(error, expected) from None

    def encode(value: object) -> object:
        exact = type(value) is model
        if not exact:
            raise wrong(value, expected)
        try:
            data = model.__pydantic_serializer__.to_python(
                value, mode="json", by_alias=False, round_trip=True, warnings=False
            )
        except ValueError as error:  # pydantic's PydanticSerializationError is one
            raise Problem(f"cannot be serialized ({type(error).__name__})") from None
        back = decode(data, None)
        for name in names:
            if getattr(back, name) != getattr(value, name):
                raise Problem("does not survive JSON").under(f".{name}")
        return data

    return encode, decode


def _first_problem(error: ValueError, expected: str) -> Problem:
    errors = getattr(error, "errors", None)
    if errors is None:
        return Problem(f"cannot be read as {expected} ({type(error).__name__})")
    first = errors(include_input=False, include_context=False, include_url=False)[0]
    own = first["type"] in _OWN_WORDS
    said = "its own validator" if own else first["msg"]
    problem = Problem(f"was refused by {expected}: {said}")
    for step in reversed(first["loc"]):
        problem.under(f"[{step}]" if isinstance(step, int) else f".{step}")
    return problem
