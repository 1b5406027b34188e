"""What the documentation shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT, Block, PageError, blocks, commands, pages
from tests.support.processes import COMMAND_LINE

LINK = re.compile(r"\]\((?!https?:|mailto:|#)(?P<target>[^)#\s]+)")


def title(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def runs(path: Path) -> bool:
    found = blocks(path.read_text("utf-8"))
    return any(b.language == "python" or b.verb in {"run", "background"} for b in found)


@pytest.mark.parametrize("page", [p for p in pages() if runs(p)], ids=title)
def test_the_code_of_a_page_runs(page, empty_url, processes, tmp_path):
    url = empty_url.render_as_string(hide_password=False)
    env = {
        "SQLA_JOBS_DATABASE_URL": url,
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
    }
    child = processes.python(
        "-m", "tests.support.pages", str(page), env=env, cwd=tmp_path
    )
    assert child.wait(100) == 0, child.output


@pytest.mark.parametrize("page", pages(), ids=title)
def test_links_to_files_lead_somewhere(page):
    targets = {m["target"] for m in LINK.finditer(page.read_text("utf-8"))}
    assert {t for t in targets if not (page.parent / t).exists()} == set()


def test_a_pages_failure_names_the_pages_own_line(processes, empty_url, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n<!-- test: skip shown only -->\n```python\n1 / 0\n```\n"
        "```python\n# shop/jobs.py\nVALUE = 1\n```\n"
        "```python\nfrom shop.jobs import VALUE\nraise KeyError(VALUE)\n```\n"
    )
    env = {"SQLA_JOBS_DATABASE_URL": str(empty_url), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    child = processes.python(
        "-m", "tests.support.pages", str(page), env=env, cwd=tmp_path
    )
    assert child.wait() == 1
    assert f'File "{page}", line 13' in child.output
    assert "KeyError: 1" in child.output


def test_console_lines_become_commands_of_this_interpreter():
    block = Block("console", "$ sqla-jobs queues --json  # all\nname  depth\n", 1)
    ((_, *rest),) = commands(block)
    assert rest == [*COMMAND_LINE, "queues", "--json"]
    with pytest.raises(PageError, match="only sqla-jobs"):
        list(commands(Block("console", "$ rm file\n", 1)))


@pytest.mark.parametrize(
    "text",
    [
        "<!-- test: skip -->\n```python\n```\n",
        "<!-- test: ignore it -->\n```python\n```\n",
        "<!-- test: run -->\n",
        "```python\nnever closed\n",
    ],
)
def test_a_page_that_cannot_be_read_is_refused(text):
    with pytest.raises(PageError):
        list(blocks(text))
