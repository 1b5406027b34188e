"""Lists, tuples, sets and dicts, made of the hooks of their parts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sqla_jobs.declare.shapes import LISTS, SETS, AnyType
from sqla_jobs.declare.strict import (
    Hooks,
    Problem,
    Unsupported,
    each_item,
    key_step,
    wrong,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


def array_hooks(origin: AnyType, item: Hooks) -> Hooks:
    """Return the hooks of a list, set or homogeneous tuple: *origin* names which."""
    build: Callable[[list[Any]], object] = list if origin in LISTS else origin
    expected = f"a {list.__name__ if origin in LISTS else origin.__name__}"
    # Sequence[T] takes tuples too, and gives a list back; list[T] takes lists only.
    taken = {origin} if origin in {list, tuple, *SETS} else {list, tuple}

    def encode(value: object) -> list[Any]:
        if type(value) not in taken or not isinstance(value, Iterable):
            raise wrong(value, expected)
        items = each_item(item.encode, value)
        # The order of a set differs between processes; its JSON must not.
        return sorted(items, key=json.dumps) if origin in SETS else items

    def read(data: object) -> object:
        return item.decode(data, None)

    def decode(data: object, _: object) -> object:
        if type(data) is not list:
            raise wrong(data, f"the list of {expected}")
        return build(each_item(read, data))

    return Hooks(encode, decode, frozenset({list}))


def tuple_hooks(items: Sequence[Hooks]) -> Hooks:
    """Return the hooks of a tuple with one type for each place."""
    expected = f"a tuple of {len(items)}"

    def each(
        values: Collection[object], convert: Callable[[Hooks, Any], Any]
    ) -> list[Any]:
        if len(values) != len(items):
            raise Problem(f"has {len(values)} items, not {len(items)}")
        pairs = zip(items, values, strict=True)
        return each_item(lambda pair: convert(*pair), pairs)

    def encode(value: object) -> list[Any]:
        if type(value) is not tuple:
            raise wrong(value, expected)
        return each(value, lambda hooks, item: hooks.encode(item))

    def decode(data: object, _: object) -> tuple[Any, ...]:
        if type(data) is not list:
            raise wrong(data, f"the list of {expected}")
        return tuple(each(data, lambda hooks, item: hooks.decode(item, None)))

    return Hooks(encode, decode, frozenset({list}))


def _int_key(text: str) -> int:
    number = int(text)
    if str(number) != text:  # "01" and " 1" are not what was written
        raise ValueError
    return number


def dict_hooks(key_type: object, key: Hooks, item: Hooks) -> Hooks:
    """Return the hooks of a dict whose keys are text, or ints written as text."""
    if key.json not in {frozenset({str}), frozenset({int})}:
        raise Unsupported(key_type, "cannot be a dict's key: JSON's keys are text")
    as_int = int in key.json

    def encode(value: object) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong(value, "a dict")
        fields: dict[str, Any] = {}
        for name, content in value.items():
            try:
                fields[str(key.encode(name))] = item.encode(content)
            except Problem as problem:
                raise problem.under(key_step(name)) from None
        return fields

    def decode(data: object, _: object) -> dict[Any, Any]:
        if type(data) is not dict:
            raise wrong(data, "a dict")
        fields: dict[Any, Any] = {}
        for name, content in data.items():
            try:
                read = _int_key(name) if as_int else name
                fields[key.decode(read, None)] = item.decode(content, None)
            except ValueError:
                raise Problem("is a key that is no int").under(key_step(name)) from None
            except Problem as problem:
                raise problem.under(key_step(name)) from None
        return fields

    return Hooks(encode, decode, frozenset({dict}))


def typeddict_hooks(fields: Sequence[tuple[str, bool, Hooks]]) -> Hooks:
    """Return the hooks of a TypedDict with *fields*: name, whether required, hooks."""
    names = {name for name, _, _ in fields}

    def each(value: object, convert: Callable[[Hooks, Any], Any]) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong(value, "a dict")
        found: dict[str, Any] = {}
        for name, required, hooks in fields:
            if name in value:
                try:
                    found[name] = convert(hooks, value[name])
                except Problem as problem:
                    raise problem.under(f".{name}") from None
            elif required:
                raise Problem("is missing").under(f".{name}")
        return found

    def encode(value: object) -> dict[str, Any]:
        found = each(value, lambda hooks, item: hooks.encode(item))
        if isinstance(value, dict) and not names.issuperset(value):
            extra = next(name for name in value if name not in names)
            raise Problem("is not declared").under(key_step(extra))
        return found

    def decode(data: object, _: object) -> dict[str, Any]:
        return each(data, lambda hooks, item: hooks.decode(item, None))

    return Hooks(encode, decode, frozenset({dict}))
