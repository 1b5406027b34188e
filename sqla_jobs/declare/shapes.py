"""What a declared type is made of: its fields, its items, its members.

Types are read once, when a codec is made. Forward references resolve in the module of
the class that holds them.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

import attrs
import typing_extensions
from typing_extensions import ReadOnly, TypeAliasType

LISTS: Final = frozenset({list, Sequence, MutableSequence})
"""Types that are stored as an array and come back as a list."""
SETS: Final = frozenset({set, frozenset})
"""Types that are stored as an array, sorted."""
DICTS: Final = frozenset({dict, Mapping, MutableMapping})
"""Types that are stored as an object and come back as a dict."""

AnyType: TypeAlias = Any
"""A class, alias or special form: what may stand in an annotation. typing has no type
for all of them."""

_WRAPPERS: Final = frozenset({Annotated, Required, NotRequired, ReadOnly, typing.Final})


@attrs.frozen
class Field:
    """A field of a class or TypedDict."""

    name: str
    type: AnyType
    required: bool = True


def plain(type_: object) -> object:
    """Return *type_* without what does not change its JSON: Annotated, NewType, aliases."""
    while True:
        if isinstance(type_, TypeAliasType):
            type_ = type_.__value__
        elif get_origin(type_) in _WRAPPERS:
            type_ = get_args(type_)[0]
        elif isinstance(type_, typing.NewType):
            type_ = type_.__supertype__
        else:
            return type_


def marks(type_: object) -> tuple[object, ...]:
    """Return the metadata of every Annotated layer of *type_*."""
    found: tuple[object, ...] = ()
    while True:
        if isinstance(type_, TypeAliasType):
            type_ = type_.__value__
        elif get_origin(type_) in _WRAPPERS:
            found += getattr(type_, "__metadata__", ())
            type_ = get_args(type_)[0]
        elif isinstance(type_, typing.NewType):
            type_ = type_.__supertype__
        else:
            return found


def is_union(type_: object) -> bool:
    """Whether the plain *type_* is a union."""
    return get_origin(type_) in {Union, types.UnionType}


def is_literal(type_: object) -> bool:
    """Whether the plain *type_* is a ``Literal``."""
    return get_origin(type_) is Literal


def class_of(type_: object) -> AnyType:
    """Return the class behind a subscripted *type_* (``list[int]``), or *type_*."""
    return get_origin(type_) or type_


def hashable(type_: object) -> bool:
    """Whether *type_* can be a dict's key; metadata of Annotated may stand against it."""
    try:
        hash(type_)
    except TypeError:
        return False
    return True


def is_record(type_: object) -> bool:
    """Whether the plain *type_* is an attrs class or dataclass, generic or not."""
    cls = class_of(type_)
    return isinstance(cls, type) and (attrs.has(cls) or dataclasses.is_dataclass(cls))


def is_typeddict(type_: object) -> bool:
    """Whether the plain *type_* is a TypedDict, generic or not."""
    return typing_extensions.is_typeddict(class_of(type_))


def is_pydantic(type_: object) -> bool:
    """Whether the plain *type_* is a pydantic model (pydantic need not be installed)."""
    return (
        isinstance(type_, type)
        and hasattr(type_, "__pydantic_validator__")
        and hasattr(type_, "model_fields")
    )


def fields_of(type_: object) -> tuple[Field, ...]:
    """Return the fields that the constructor of the plain *type_* takes.

    *type_* is a record, TypedDict or pydantic model. Raises NameError when a forward
    reference does not resolve yet.
    """
    cls = class_of(type_)
    hints = typing_extensions.get_type_hints(cls, include_extras=True)
    if is_typeddict(type_):
        found = [Field(n, t, _is_required(cls, n, t)) for n, t in hints.items()]
    elif is_pydantic(type_):
        found = [Field(name, hints[name]) for name in cls.model_fields]
    elif attrs.has(cls):
        found = [
            # attrs.field() without an annotation: plain JSON values, as with Any.
            Field(each.name, hints.get(each.name, each.type or Any))
            for each in attrs.fields(cls)
            if each.init
        ]
    else:
        found = [
            Field(each.name, hints[each.name])
            for each in dataclasses.fields(cls)
            if each.init
        ]
    bound = dict(zip(getattr(cls, "__parameters__", ()), get_args(type_), strict=False))
    return tuple(attrs.evolve(each, type=_bind(each.type, bound)) for each in found)


def _is_required(cls: AnyType, name: str, type_: object) -> bool:
    # A TypedDict of a module with postponed annotations did not see its NotRequired
    # when it was made (Python 3.11): look at the resolved annotation first.
    while get_origin(type_) in _WRAPPERS:
        if get_origin(type_) in {Required, NotRequired}:
            return get_origin(type_) is Required
        type_ = get_args(type_)[0]
    return name in cls.__required_keys__


def _bind(type_: AnyType, bound: dict[AnyType, AnyType]) -> AnyType:
    """Put the arguments of a generic class in the place of its type variables."""
    if isinstance(type_, typing.TypeVar):
        return bound.get(type_, type_)
    parameters = getattr(type_, "__parameters__", ())
    if bound and parameters and get_origin(type_) is not None:
        return type_[tuple(bound.get(each, each) for each in parameters)]
    return type_


def parts(type_: object) -> Iterator[tuple[str, Any]]:
    """Yield what the plain *type_* consists of, as (step, type).

    A step is ``.name`` for a field, ``[2]`` for a place in a tuple, ``[*]`` for every
    item or value, ``{}`` for a dict's keys and ``|`` for a member of a union.
    """
    origin, args = class_of(type_), get_args(type_)
    if is_record(type_) or is_typeddict(type_) or is_pydantic(type_):
        for each in fields_of(type_):
            yield f".{each.name}", each.type
    elif is_union(type_):
        for member in args:
            yield "|", member
    elif origin is tuple and args and args[-1] is not ...:
        for index, item in enumerate(args):
            yield f"[{index}]", item
    elif args and (origin is tuple or origin in LISTS or origin in SETS):
        yield "[*]", args[0]
    elif args and origin in DICTS:
        yield "{}", args[0]
        yield "[*]", args[1]
