"""Every error has a code of its own, and the code has its page section."""

from __future__ import annotations

import inspect
import re
from collections import Counter

from sqla_jobs import exc
from tests.support.tree import ROOT

ERRORS = ROOT / "docs" / "errors.md"


def classes() -> list[type[exc.JobsError]]:
    return [
        value
        for value in vars(exc).values()
        if inspect.isclass(value) and issubclass(value, exc.JobsError)
    ]


def sections() -> dict[str, str]:
    """Return the text of each section, by its code; group headings are cut off."""
    parts = re.split(r"^### (.+)$", ERRORS.read_text("utf-8"), flags=re.MULTILINE)
    return {
        code: text.split("\n## ")[0]
        for code, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_every_error_class_declares_a_code_of_its_own():
    assert [c.__name__ for c in classes() if "code" not in vars(c)] == []
    counted = Counter(c.code for c in classes())
    assert [code for code, times in counted.items() if times > 1] == []


def test_errors_md_has_exactly_one_section_per_code():
    assert sorted(sections()) == sorted(c.code for c in classes())


def test_each_section_names_its_class_and_says_what_to_do():
    written = sections()
    for cls in classes():
        section = written[cls.code]
        assert f"`{cls.__name__}`" in section, cls.code
        assert "**What to do**" in section, cls.code
