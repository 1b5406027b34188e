"""Every public name says what it does; both doors have the same verbs."""

from __future__ import annotations

import ast
import inspect

import sqla_jobs
from tests.support.tree import documented_assignments, modules, public_definitions


def test_every_module_says_what_it_is_for():
    assert [m.name for m in modules() if not ast.get_docstring(m.tree)] == []


def test_every_public_class_function_and_method_has_a_docstring():
    missing = [
        f"{module.name}:{name}"
        for module in modules()
        for name, node in public_definitions(module.tree.body)
        if not ast.get_docstring(node)
    ]
    assert missing == []


def test_every_exported_name_has_a_docstring_of_its_own():
    """Constants and aliases have theirs as a string below their assignment."""
    assigned = set().union(*(documented_assignments(m.tree) for m in modules()))
    missing = []
    for name in sqla_jobs.__all__:
        value = getattr(sqla_jobs, name)
        if inspect.isclass(value):
            documented = vars(value).get("__doc__")  # its own, not an inherited one
        elif inspect.isroutine(value):
            documented = value.__doc__
        else:
            documented = name in assigned
        if not documented:
            missing.append(name)
    assert missing == []


def test_no_name_is_exported_twice():
    assert len(sqla_jobs.__all__) == len(set(sqla_jobs.__all__))


def test_both_doors_have_the_same_verbs_with_the_same_parameters():
    """No twins: what one session can do the other can, under the same names."""
    from sqla_jobs import JobSession
    from sqla_jobs.asyncio import AsyncJobSession

    sync, asynchronous = _verbs(JobSession), _verbs(AsyncJobSession)
    assert sync.keys() == asynchronous.keys()
    assert "enqueue" in sync
    for name, parameters in sync.items():
        assert asynchronous[name] == parameters, name


def _verbs(door: type) -> dict[str, list[str]]:
    """Return our public methods, with their parameters; SQLAlchemy's are not ours."""
    ours = [c for c in door.__mro__ if c.__module__.startswith("sqla_jobs")]
    return {
        name: list(inspect.signature(value).parameters)
        for cls in ours
        for name, value in vars(cls).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
