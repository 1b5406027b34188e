"""The strict hooks that a codec is made of: one encoder and one decoder per type.

cattrs generates the functions that read classes, and tells the members of a union of
classes apart; every hook it finds for a field is one of ours, so nothing is coerced:
``"1"`` is no int, a str is no list of str, and no type is built that was not declared.
Hooks are made once per type and shared by all codecs.
"""

from __future__ import annotations

from enum import Enum
from threading import RLock
from typing import Any, Final, get_args

from cattrs import Converter
from cattrs.errors import ClassValidationError
from cattrs.gen import make_dict_structure_fn

from sqla_jobs.declare.choices import enum_hooks, literal_hooks, union_hooks
from sqla_jobs.declare.containers import (
    array_hooks,
    dict_hooks,
    tuple_hooks,
    typeddict_hooks,
)
from sqla_jobs.declare.pydantic import pydantic_hooks
from sqla_jobs.declare.scalars import NATIVE, SCALARS
from sqla_jobs.declare.sensitive import mask_of
from sqla_jobs.declare.shapes import (
    DICTS,
    LISTS,
    SETS,
    AnyType,
    class_of,
    fields_of,
    hashable,
    is_literal,
    is_pydantic,
    is_record,
    is_typeddict,
    is_union,
    plain,
)
from sqla_jobs.declare.strict import Decode, Hooks, Problem, Unsupported, wrong

_lock = RLock()
_known: dict[object, Hooks] = {**SCALARS, Any: NATIVE, object: NATIVE}
_in_progress: set[object] = set()


def hooks_for(type_: object) -> Hooks:
    """Return the hooks of *type_*; raise :class:`.Unsupported`.

    A forward reference that does not resolve yet raises NameError.
    """
    type_ = plain(type_)
    if not hashable(type_):  # Annotated metadata inside; such a type is not recursive
        return _make(type_)
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


def _later(type_: object) -> Hooks:
    """The hooks of a recursive type inside itself: looked up when they are used."""
    origin = class_of(type_)
    is_array = origin in LISTS or origin in SETS or origin is tuple

    def encode(value: object) -> object:
        return _known[type_].encode(value)

    def decode(data: object, _: object) -> object:
        return _known[type_].decode(data, None)

    return Hooks(encode, decode, frozenset({list if is_array else dict}))


def _part(type_: object, step: str) -> Hooks:
    """The hooks of a part of a type; a refusal tells where the part stands."""
    try:
        return hooks_for(type_)
    except Unsupported as refused:
        refused.steps.append(step)
        raise


def _make(type_: AnyType) -> Hooks:
    if is_pydantic(type_):
        return Hooks(*pydantic_hooks(type_), frozenset({dict}))
    if is_record(type_):
        return _record(type_)
    if is_typeddict(type_):
        return typeddict_hooks(
            [
                (each.name, each.required, _part(each.type, f".{each.name}"))
                for each in fields_of(type_)
            ]
        )
    if is_union(type_):
        return _union(type_)
    if is_literal(type_):
        return literal_hooks(get_args(type_))
    if isinstance(type_, type) and issubclass(type_, Enum):
        return enum_hooks(type_)
    return _container(type_)


def _container(type_: AnyType) -> Hooks:
    origin, args = class_of(type_), get_args(type_)
    if any(getattr(each, "__unpacked__", False) for each in args):
        raise Unsupported(type_, "has a part of open length among its places")
    if origin is tuple and type_ is not tuple and args[-1:] != (...,):
        return tuple_hooks([_part(each, f"[{i}]") for i, each in enumerate(args)])
    if origin in LISTS or origin in SETS or origin is tuple:
        return array_hooks(origin, _part(args[0] if args else Any, "[*]"))
    if origin in DICTS:
        key, item = args or (str, Any)
        return dict_hooks(key, _part(key, "{}"), _part(item, "[*]"))
    raise Unsupported(type_, "is no type that JSON can carry exactly")


def _union(type_: object) -> Hooks:
    members = [plain(each) for each in get_args(type_)]
    if Any in members or object in members:
        return NATIVE
    return union_hooks(members, [hooks_for(each) for each in members], hooks_for)


# --- classes --------------------------------------------------------------------------


class _StrictConverter(Converter):
    """A converter that reads every part of what it reads with our hooks."""

    def get_structure_hook(
        self,
        type: Any,
        cache_result: bool = True,  # noqa: ARG002, FBT001, FBT002 - cattrs's signature
    ) -> Decode:
        return hooks_for(type).decode


_converter: Final = _StrictConverter(detailed_validation=True)


def _record(type_: AnyType) -> Hooks:
    cls = class_of(type_)
    expected = cls.__qualname__
    writers = [
        (each.name, _part(each.type, f".{each.name}").encode)
        for each in fields_of(type_)
    ]
    build: Decode = make_dict_structure_fn(type_, _converter, _cattrs_use_alias=False)
    shows_values = not mask_of(type_).paths()

    def encode(value: object) -> dict[str, Any]:
        # Exactly this class: a subclass would lose its own fields on the way.
        if type(value) is not cls:
            raise wrong(value, expected)
        data: dict[str, Any] = {}
        name = ""
        try:
            for name, write in writers:
                data[name] = write(getattr(value, name))
        except Problem as problem:
            raise problem.under(f".{name}") from None
        return data

    def decode(data: object, _: object) -> object:
        if type(data) is not dict:
            raise wrong(data, f"the fields of {expected}")
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
        kind = type(of_class[0]).__name__
        return Problem(f"was refused by {expected} ({kind}{said})")
    error, note = of_fields[0]
    if isinstance(error, Problem):
        # A new one: cattrs has put its notes of the inner fields on the old one.
        problem = error.copy()
    elif isinstance(error, KeyError):
        problem = Problem("is missing")
    else:
        problem = Problem(f"cannot be read ({type(error).__name__})")
    return problem.under(f".{note.name}")
