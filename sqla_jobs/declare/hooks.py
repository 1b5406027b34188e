"""The strict hooks that a codec is made of: one encoder and one decoder per type.

cattrs generates the functions that read classes, and tells the members of a union of
classes apart; every hook it finds for a field is one of ours, so nothing is coerced:
``"1"`` is no int, a str is no list of str, and no type is built that was not declared.
Hooks are made once per type and shared by all codecs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum, Flag
from threading import RLock
from typing import Any, Final, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.disambiguators import create_default_dis_func
from cattrs.errors import ClassValidationError
from cattrs.gen import make_dict_structure_fn

from sqla_jobs.declare.pydantic import pydantic_hooks
from sqla_jobs.declare.scalars import (
    SCALARS,
    Decode,
    Encode,
    Problem,
    encode_native,
    key_step,
    wrong,
)
from sqla_jobs.declare.sensitive import mask_of
from sqla_jobs.declare.shapes import (
    DICTS,
    LISTS,
    SETS,
    fields_of,
    is_literal,
    is_pydantic,
    is_record,
    is_typeddict,
    is_union,
    plain,
)


@attrs.frozen
class Hooks:
    """How values of one type are written and read.

    ``json`` are the Python classes its JSON has (``str``, ``dict``, ...), by which the
    members of a union are told apart.
    """

    encode: Encode
    decode: Decode
    json: frozenset[type]


class Unsupported(Exception):  # noqa: N818 - becomes an UnsupportedTypeError
    """A type that cannot be stored; *reason* continues a sentence that begins with it."""

    def __init__(self, type_: object, reason: str) -> None:
        super().__init__(type_, reason)
        self.type, self.reason = type_, reason
        self.steps: list[str] = []


_ANY_JSON: Final = frozenset({type(None), bool, int, float, str, list, dict})
_SCALAR_JSON: Final[dict[object, type]] = {
    None: type(None),
    type(None): type(None),
    bool: bool,
    int: int,
    float: float,
}

_lock = RLock()
_known: dict[Any, Hooks] = {}
_in_progress: set[Any] = set()


def hooks_for(type_: Any) -> Hooks:
    """Return the hooks of *type_*; raise :class:`.Unsupported`.

    A forward reference that does not resolve yet raises NameError.
    """
    type_ = plain(type_)
    found = _known.get(type_)
    if found is not None:
        return found
    with _lock:
        if type_ in _in_progress:
            return _later(type_)
        _in_progress.add(type_)
        try:
            found = _make(type_)
        finally:
            _in_progress.discard(type_)
        _known[type_] = found
        return found


def _later(type_: Any) -> Hooks:
    """The hooks of a recursive type, inside itself: looked up when first used."""
    json_of = dict if not is_union(type_) else object
    return Hooks(
        lambda value: _known[type_].encode(value),
        lambda data, _: _known[type_].decode(data, _),
        frozenset({json_of}),
    )


def _part(type_: Any, step: str) -> Hooks:
    """The hooks of a part of a type; a refusal tells where the part stands."""
    try:
        return hooks_for(type_)
    except Unsupported as refused:
        refused.steps.append(step)
        raise


def _make(type_: Any) -> Hooks:
    origin, args = get_origin(type_) or type_, get_args(type_)
    if type_ is Any or type_ is object:
        return Hooks(encode_native, lambda data, _: data, _ANY_JSON)
    if type_ in SCALARS:
        encode, decode = SCALARS[type_]
        return Hooks(encode, decode, frozenset({_SCALAR_JSON.get(type_, str)}))
    if is_pydantic(type_):
        return Hooks(*pydantic_hooks(type_), frozenset({dict}))
    if is_record(type_):
        return _record(type_)
    if is_typeddict(type_):
        return _typeddict(type_)
    if is_union(type_):
        return _union(args)
    if is_literal(type_):
        return _choices([(value, _literal_json(value)) for value in args], "allowed")
    if isinstance(type_, type) and issubclass(type_, Enum):
        return _enum(type_)
    if origin is tuple and (not args or args[-1] is not ...) and args != ():
        return _fixed_tuple(args)
    if type_ == tuple[()]:
        return _fixed_tuple(())
    if origin in LISTS or origin in SETS or origin is tuple:
        return _array(origin, args[0] if args else Any)
    if origin in DICTS:
        return _dict(*(args or (str, Any)))
    raise Unsupported(type_, "is no type that JSON can carry exactly")


# --- arrays ---------------------------------------------------------------------------


def _items(encode: Callable[[Any], Any], values: Any) -> list[Any]:
    """Apply *encode* to each value; a problem's path gets the index."""
    items: list[Any] = []
    try:
        for value in values:
            items.append(encode(value))  # noqa: PERF401 - its length is the index
    except Problem as problem:
        raise problem.under(f"[{len(items)}]") from None
    return items


def _array(origin: Any, item_type: Any) -> Hooks:
    item = _part(item_type, "[*]")
    build: Any = list if origin in LISTS else origin
    expected = f"a {build.__name__}"
    # Sequence[T] takes tuples too, and gives a list back; list[T] takes lists only.
    taken = {build} if origin in {list, tuple, set, frozenset} else {list, tuple}

    def encode(value: Any) -> list[Any]:
        if value.__class__ not in taken:
            wrong(value, expected)
        items = _items(item.encode, value)
        # Iteration order of a set differs between processes; its JSON must not.
        return sorted(items, key=json.dumps) if build in SETS else items

    def read(data: Any) -> Any:
        return item.decode(data, None)

    def decode(data: Any, _: Any) -> Any:
        if data.__class__ is not list:
            wrong(data, f"the list of {expected}")
        items = _items(read, data)
        return items if build is list else build(items)

    return Hooks(encode, decode, frozenset({list}))


def _fixed_tuple(types: tuple[Any, ...]) -> Hooks:
    hooks = [_part(each, f"[{index}]") for index, each in enumerate(types)]
    expected = f"a tuple of {len(hooks)}"

    def each(values: Any, how: Callable[[Hooks, Any], Any]) -> list[Any]:
        if len(values) != len(hooks):
            raise Problem(f"has {len(values)} items, not {len(hooks)}")
        return _items(lambda pair: how(*pair), zip(hooks, values, strict=True))

    def encode(value: Any) -> list[Any]:
        if value.__class__ is not tuple:
            wrong(value, expected)
        return each(value, lambda hook, item: hook.encode(item))

    def decode(data: Any, _: Any) -> tuple[Any, ...]:
        if data.__class__ is not list:
            wrong(data, f"the list of {expected}")
        return tuple(each(data, lambda hook, item: hook.decode(item, None)))

    return Hooks(encode, decode, frozenset({list}))


# --- objects --------------------------------------------------------------------------


def _int_key(text: str) -> int:
    number = int(text)
    if str(number) != text:  # "01" and " 1" are not what was written
        raise ValueError
    return number


def _dict(key_type: Any, item_type: Any) -> Hooks:
    key, item = _part(key_type, "{}"), _part(item_type, "[*]")
    if key.json not in ({str}, {int}):
        raise Unsupported(key_type, "cannot be a dict's key: JSON's keys are text")
    as_int = key.json == {int}

    def encode(value: Any) -> dict[str, Any]:
        if value.__class__ is not dict:
            wrong(value, "a dict")
        fields: dict[str, Any] = {}
        for name, content in value.items():
            try:
                fields[str(key.encode(name))] = item.encode(content)
            except Problem as problem:
                raise problem.under(key_step(name)) from None
        if len(fields) != len(value):
            raise Problem("has different keys with the same text")
        return fields

    def decode(data: Any, _: Any) -> dict[Any, Any]:
        if data.__class__ is not dict:
            wrong(data, "a dict")
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


def _typeddict(type_: Any) -> Hooks:
    fields = [
        (each.name, each.required, _part(each.type, f".{each.name}"))
        for each in fields_of(type_)
    ]
    names = {name for name, _, _ in fields}

    def each(value: Any, how: Callable[[Hooks, Any], Any]) -> dict[str, Any]:
        if value.__class__ is not dict:
            wrong(value, "a dict")
        found: dict[str, Any] = {}
        for name, required, hooks in fields:
            if name in value:
                try:
                    found[name] = how(hooks, value[name])
                except Problem as problem:
                    raise problem.under(f".{name}") from None
            elif required:
                raise Problem("is missing").under(f".{name}")
        return found

    def encode(value: Any) -> dict[str, Any]:
        found = each(value, lambda hooks, item: hooks.encode(item))
        for name in value:
            if name not in names:
                raise Problem("is not declared").under(key_step(name))
        return found

    def decode(data: Any, _: Any) -> dict[str, Any]:
        return each(data, lambda hooks, item: hooks.decode(item, None))

    return Hooks(encode, decode, frozenset({dict}))


def _record(type_: Any) -> Hooks:
    cls = get_origin(type_) or type_
    fields = [
        (each.name, _part(each.type, f".{each.name}")) for each in fields_of(type_)
    ]
    writers = [(name, hooks.encode) for name, hooks in fields]
    expected = f"{cls.__qualname__}"
    build = make_dict_structure_fn(type_, _converter, _cattrs_use_alias=False)
    shows_values = not mask_of(type_).paths()

    def encode(value: Any) -> dict[str, Any]:
        # Exactly this class: a subclass would lose its own fields on the way.
        if value.__class__ is not cls:
            wrong(value, expected)
        data: dict[str, Any] = {}
        name = ""
        try:
            for name, write in writers:
                data[name] = write(getattr(value, name))
        except Problem as problem:
            raise problem.under(f".{name}") from None
        return data

    def decode(data: Any, _: Any) -> Any:
        if data.__class__ is not dict:
            wrong(data, f"the fields of {expected}")
        try:
            return build(data, cls)
        except ClassValidationError as group:
            # Not chained: the group holds messages that may quote sensitive values.
            raise _first_problem(group, expected, shows_values=shows_values) from None

    return Hooks(encode, decode, frozenset({dict}))


def _first_problem(
    group: ClassValidationError, expected: str, *, shows_values: bool
) -> Problem:
    """Turn what cattrs collected into the problem of its first field."""
    of_fields, of_class = group.group_exceptions()
    if not of_fields:
        # The class's own validators may quote what they refuse.
        said = f": {str(of_class[0])[:200]}" if shows_values else ""
        return Problem(
            f"was refused by {expected} ({type(of_class[0]).__name__}{said})"
        )
    error, note = of_fields[0]
    if isinstance(error, Problem):
        # A new one: cattrs has put its notes of the inner fields on the old one.
        problem = error.copy()
    elif isinstance(error, KeyError):
        problem = Problem("is missing")
    else:
        problem = Problem(f"cannot be read ({type(error).__name__})")
    return problem.under(f".{note.name}")


# --- choices --------------------------------------------------------------------------


def _enum(type_: type[Enum]) -> Hooks:
    if issubclass(type_, Flag):
        return _flag(type_)
    choices: list[tuple[object, object]] = [(each, each.value) for each in type_]
    if not choices or any(json.__class__ not in {str, int} for _, json in choices):
        raise Unsupported(type_, "has members whose values are neither str nor int")
    return _choices(choices, f"a value of {type_.__qualname__}")


def _flag(type_: type[Flag]) -> Hooks:
    expected = type_.__qualname__

    def encode(value: Any) -> int:
        if value.__class__ is not type_:
            wrong(value, expected)
        return int(value.value)

    def decode(data: Any, _: Any) -> Flag:
        if data.__class__ is not int:
            wrong(data, "an int")
        try:
            return type_(data)
        except ValueError:
            raise Problem(f"is not a value of {expected}") from None

    return Hooks(encode, decode, frozenset({int}))


def _literal_json(value: object) -> object:
    json_value = value.value if isinstance(value, Enum) else value
    if json_value.__class__ not in {str, int, bool, type(None)}:
        raise Unsupported(type(value), "cannot be a value of a Literal in JSON")
    return json_value


def _choices(choices: list[tuple[object, object]], allowed: str) -> Hooks:
    """The hooks of a fixed set of values; classes count, since ``True == 1 == 1.0``."""
    writes = {(value.__class__, value): data for value, data in choices}
    reads = {(data.__class__, data): value for value, data in choices}

    def look_up(table: dict[tuple[type, object], object], key: Any) -> object:
        try:
            return table[key.__class__, key]
        except (KeyError, TypeError):  # TypeError: not hashable, so no member
            raise Problem(f"is not {allowed}") from None

    return Hooks(
        lambda value: look_up(writes, value),
        lambda data, _: look_up(reads, data),
        frozenset(data.__class__ for _, data in choices),
    )


def _union(members: tuple[Any, ...]) -> Hooks:
    plains = [plain(each) for each in members]
    if Any in plains or object in plains:
        return hooks_for(Any)
    hooks = [hooks_for(each) for each in plains]
    reads = _readers(plains, hooks)
    exact = {
        each: found.encode
        for each, found in zip(plains, hooks, strict=True)
        if isinstance(each, type)
    }
    expected = " or ".join(getattr(each, "__name__", str(each)) for each in plains)

    def encode(value: Any) -> Any:
        # The exact class first: an int must not become the float that stands before it.
        known = exact.get(value.__class__)
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
        wrong(value, expected)

    def decode(data: Any, _: Any) -> Any:
        read = reads.get(data.__class__)
        if read is None:
            wrong(data, expected)
        return read(data, None)

    return Hooks(encode, decode, frozenset(reads))


def _readers(plains: list[Any], hooks: list[Hooks]) -> dict[type, Decode]:
    """Return which member reads which JSON; refuse members that look the same."""
    reads: dict[type, Decode] = {}
    records = [each for each in plains if is_record(each)]
    if len(records) > 1:
        reads[dict] = _record_reader(records)
    for each, found in zip(plains, hooks, strict=True):
        if len(records) > 1 and is_record(each):
            continue
        for kind in found.json:
            if kind in reads:
                raise Unsupported(
                    each,
                    f"looks like another member of its union in JSON (a {kind.__name__}"
                    "), so the union cannot be read back",
                )
            reads[kind] = found.decode
    if float in reads and int not in reads:
        reads[int] = reads[float]
    return reads


def _record_reader(records: list[Any]) -> Decode:
    try:
        choose = create_default_dis_func(_converter, *records)
    except (TypeError, ValueError) as error:
        names = ", ".join(getattr(each, "__qualname__", str(each)) for each in records)
        raise Unsupported(
            records[0],
            f"cannot be told apart in the union of {names}: give each a required field "
            "of its own, or a Literal field",
        ) from error

    def decode(data: Any, _: Any) -> Any:
        try:
            chosen = choose(data)
        except Exception as error:  # what cattrs raises here differs by its strategy
            raise Problem("has the fields of no member of its union") from error
        return hooks_for(chosen).decode(data, None)

    return decode


class _StrictConverter(Converter):
    """A converter that reads every part of what it reads with our hooks."""

    def get_structure_hook(self, type: Any, cache_result: bool = True) -> Decode:  # noqa: FBT001, FBT002, ARG002 - cattrs's signature
        return hooks_for(type).decode


_converter: Final = _StrictConverter(detailed_validation=True)
