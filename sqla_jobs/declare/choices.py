"""Enums, Literals and unions: types whose values must be told apart in JSON."""

from __future__ import annotations

from enum import Enum, Flag
from typing import TYPE_CHECKING, Any

from cattrs import Converter
from cattrs.disambiguators import create_default_dis_func

from sqla_jobs.declare.shapes import is_record
from sqla_jobs.declare.strict import Decode, Hooks, Problem, Unsupported, wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def enum_hooks(type_: type[Enum]) -> Hooks:
    """Return the hooks of an Enum: stored by value, which must be a str or an int."""
    if issubclass(type_, Flag):
        return _flag_hooks(type_)
    choices: list[tuple[object, object]] = [(each, each.value) for each in type_]
    if not choices or any(type(data) not in {str, int} for _, data in choices):
        raise Unsupported(type_, "has members whose values are neither str nor int")
    return _choice_hooks(choices, f"a value of {type_.__qualname__}")


def literal_hooks(values: Sequence[object]) -> Hooks:
    """Return the hooks of a Literal of *values*."""
    return _choice_hooks([(each, _literal_json(each)) for each in values], "allowed")


def _literal_json(value: object) -> object:
    data = value.value if isinstance(value, Enum) else value
    if type(data) not in {str, int, bool, type(None)}:
        raise Unsupported(type(value), "cannot be a value of a Literal in JSON")
    return data


def _flag_hooks(type_: type[Flag]) -> Hooks:
    expected = type_.__qualname__

    def encode(value: object) -> int:
        if not isinstance(value, type_):
            raise wrong(value, expected)
        return int(value.value)

    def decode(data: object, _: object) -> Flag:
        if type(data) is not int:
            raise wrong(data, "an int")
        try:
            return type_(data)
        except ValueError:
            raise Problem(f"is not a value of {expected}") from None

    return Hooks(encode, decode, frozenset({int}))


def _choice_hooks(choices: list[tuple[object, object]], allowed: str) -> Hooks:
    """The hooks of a fixed set of values; classes count, since ``True == 1 == 1.0``."""
    writes = {(type(value), value): data for value, data in choices}
    reads = {(type(data), data): value for value, data in choices}

    def look_up(table: Mapping[tuple[type, object], object], key: object) -> object:
        try:
            return table[type(key), key]
        except (KeyError, TypeError):  # TypeError: not hashable, so no member
            raise Problem(f"is not {allowed}") from None

    return Hooks(
        lambda value: look_up(writes, value),
        lambda data, _: look_up(reads, data),
        frozenset(type(data) for _, data in choices),
    )


def union_hooks(
    members: Sequence[Any], hooks: Sequence[Hooks], hooks_of: Callable[[Any], Hooks]
) -> Hooks:
    """Return the hooks of a union of *members*, which have *hooks*.

    Raises :class:`.Unsupported` when JSON cannot tell the members apart (``str | date``
    are both text): what was sent might come back as the other.
    """
    reads = _readers(members, hooks, hooks_of)
    exact = {
        member: found.encode
        for member, found in zip(members, hooks, strict=True)
        if isinstance(member, type)
    }
    expected = " or ".join(getattr(each, "__name__", str(each)) for each in members)

    def encode(value: object) -> object:
        # The exact class first: an int must not become the float that stands before it.
        known = exact.get(type(value))
        if known is not None:
            return known(value)
        refused: list[Problem] = []
        for each in hooks:
            try:
                return each.encode(value)
            except Problem as problem:
                refused.append(problem)
        # The member that got furthest into the value tells most.
        deepest = max(refused, key=lambda problem: len(problem.path))
        if deepest.path:
            raise deepest
        raise wrong(value, expected)

    def decode(data: object, _: object) -> object:
        read = reads.get(type(data))
        if read is None:
            raise wrong(data, expected)
        return read(data, None)

    return Hooks(encode, decode, frozenset(reads))


def _readers(
    members: Sequence[Any], hooks: Sequence[Hooks], hooks_of: Callable[[Any], Hooks]
) -> dict[type, Decode]:
    """Return which member reads which JSON; refuse members that look the same."""
    reads: dict[type, Decode] = {}
    records = [each for each in members if is_record(each)]
    if len(records) > 1:
        reads[dict] = _record_reader(records, hooks_of)
    for member, found in zip(members, hooks, strict=True):
        if len(records) > 1 and is_record(member):
            continue
        for kind in found.json:
            if kind in reads:
                raise Unsupported(
                    member,
                    f"looks like another member of its union in JSON ({kind.__name__}), "
                    "so the union cannot be read back",
                )
            reads[kind] = found.decode
    if float in reads and int not in reads:
        reads[int] = reads[float]
    return reads


def _record_reader(records: list[Any], hooks_of: Callable[[Any], Hooks]) -> Decode:
    """Return what reads one of several classes, by the fields only it has."""
    try:
        # No overrides: the converter is only asked for those.
        choose = create_default_dis_func(Converter(), *records, overrides={})
    except (TypeError, ValueError) as error:
        names = ", ".join(getattr(each, "__qualname__", str(each)) for each in records)
        raise Unsupported(
            records[0],
            f"cannot be told apart in the union of {names}: give each a required field "
            "of its own, or a Literal field",
        ) from error

    def decode(data: object, _: object) -> object:
        if not isinstance(data, dict):
            raise wrong(data, "the fields of a class")
        try:
            chosen = choose(data)
        except Exception as error:  # what cattrs raises here differs by its strategy
            raise Problem("has the fields of no member of its union") from error
        return hooks_of(chosen).decode(data, None)

    return decode
