"""Modules and functions stay small enough to be read at once."""

from __future__ import annotations

from statistics import median

from tests.support.tree import functions, length, modules

LONGEST_MODULE = 500
MEDIAN_MODULE = 150
LONGEST_FUNCTION = 60


def test_no_module_is_longer_than_500_lines():
    long = {m.name: len(m.lines) for m in modules() if len(m.lines) > LONGEST_MODULE}
    assert long == {}


def test_half_of_the_modules_have_at_most_150_lines():
    assert median(len(m.lines) for m in modules()) <= MEDIAN_MODULE


def test_no_function_is_longer_than_60_lines():
    long = {
        f"{module.name}:{node.name}": length(node)
        for module in modules()
        for node in functions(module.tree)
        if length(node) > LONGEST_FUNCTION
    }
    assert long == {}
