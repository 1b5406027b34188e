"""Run one documentation page: ``python -m tests.support.pages PAGE``.

Executed in a process and a working folder of its own, with the URL of a fresh, empty
database in ``SQLA_JOBS_DATABASE_URL``. How a page is read:

- The ``python`` blocks run from top to bottom, in one namespace, with warnings as
  errors. The URL ``postgresql+psycopg://localhost/shop`` in them is the database.
- A block whose first line is a comment with a path (``# shop/jobs.py``) is that file:
  it is written, or appended to, and imported, not run in the namespace.
- ``<!-- test: setup NAME -->`` runs ``docs/_setup/NAME.py`` in the namespace.
- ``<!-- test: skip REASON -->`` before a block: the block is only shown.
- ``<!-- test: run -->`` before a ``console`` block: its lines ``$ sqla-jobs …`` run, one
  after the other, and must exit with 0.
- ``<!-- test: background -->``: the same, but they go on until the page has ended.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.support.processes import COMMAND_LINE

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "docs" / "_setup"
URL = "postgresql+psycopg://localhost/shop"

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*).*$")
DIRECTIVE = re.compile(r"^\s*<!-- test: (?P<verb>\w+)(?: (?P<rest>.+?))? -->\s*$")
FILE = re.compile(r"^# (?P<path>(?:[a-z_]+/)*[a-z_]+\.py)\n")
VERBS = {"setup": True, "skip": True, "run": False, "background": False}


@attrs.frozen
class Block:
    """A fenced block, or a directive that stands for itself (``setup``)."""

    language: str
    code: str
    line: int
    """The page's line on which the code begins."""
    verb: str = ""
    rest: str = ""


class PageError(Exception):
    """The page is written in a way that cannot be run."""


def pages() -> list[Path]:
    """Return README.md and every page below docs/."""
    docs = [p for p in ROOT.glob("docs/**/*.md") if not p.is_relative_to(SETUP)]
    return [ROOT / "README.md", *sorted(docs)]


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    verb, rest = "", ""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if directive := DIRECTIVE.match(line):
            verb, rest = directive["verb"], directive["rest"] or ""
            if VERBS.get(verb) is not bool(rest):
                msg = f"line {number}: <!-- test: {verb} {rest} -->: one of {VERBS}"
                raise PageError(msg)
            if verb == "setup":
                yield Block("", "", number, verb, rest)
                verb, rest = "", ""
        elif fence := FENCE.match(line):
            code = list(_until_closed(lines, len(fence["indent"])))
            yield Block(fence["language"], "".join(code), number + 1, verb, rest)
            verb, rest = "", ""
    if verb:
        msg = f"<!-- test: {verb} --> stands before no block"
        raise PageError(msg)


def _until_closed(lines: Iterator[tuple[int, str]], indent: int) -> Iterator[str]:
    for _, line in lines:
        if line.strip() == "```":
            return
        yield line[indent:] + "\n"
    msg = "a block is not closed"
    raise PageError(msg)


class Page:
    """Runs the blocks of one page."""

    def __init__(self, path: Path, url: str) -> None:
        self.path, self.url = path, url
        self.namespace: dict[str, object] = {"__name__": "page", "DATABASE_URL": url}

    def run(self) -> None:
        """Run all blocks; the first one that fails ends the page."""
        with contextlib.ExitStack() as background:
            for block in blocks(self.path.read_text("utf-8")):
                self._run(block, background)

    def _run(self, block: Block, background: contextlib.ExitStack) -> None:
        if block.verb == "setup":
            path = SETUP / f"{block.rest}.py"
            self._execute(path.read_text("utf-8"), path, 1)
        elif block.verb == "skip":
            return
        elif block.language == "python" and (file := FILE.match(block.code)):
            self._write(Path(file["path"]), block)
        elif block.language == "python":
            self._execute(block.code, self.path, block.line)
        elif block.language == "console" and block.verb:
            for arguments in commands(block):
                if block.verb == "run":
                    subprocess.run(arguments, check=True)
                else:
                    background.enter_context(_going_on(arguments))

    def _execute(self, code: str, path: Path, line: int) -> None:
        # Blank lines before it: a traceback then names the page's own line.
        padded = "\n" * (line - 1) + code.replace(URL, self.url)
        exec(compile(padded, str(path), "exec"), self.namespace)

    def _write(self, path: Path, block: Block) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(block.code.replace(URL, self.url))
        name = ".".join(path.with_suffix("").parts)
        importlib.invalidate_caches()
        if name in sys.modules:
            importlib.reload(sys.modules[name])
        else:
            importlib.import_module(name)


def commands(block: Block) -> Iterator[list[str]]:
    """Yield what the ``$ `` lines of a console block start, for this interpreter."""
    for line in block.code.splitlines():
        if not line.startswith("$ "):
            continue
        program, *arguments = shlex.split(line.removeprefix("$ "), comments=True)
        if program != "sqla-jobs":
            msg = f"line {block.line}: only sqla-jobs can be run, not {program}"
            raise PageError(msg)
        yield [sys.executable, *COMMAND_LINE, *arguments]


@contextlib.contextmanager
def _going_on(arguments: list[str]) -> Iterator[None]:
    process = subprocess.Popen(arguments)
    try:
        yield
        if process.poll() not in (None, 0):
            msg = f"{shlex.join(arguments)} ended early: exit code {process.returncode}"
            raise PageError(msg)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def main() -> None:
    """Run the page that the command line names, in the working folder."""
    warnings.simplefilter("error")
    sys.path.insert(0, str(Path.cwd()))
    Page(Path(sys.argv[1]), os.environ["SQLA_JOBS_DATABASE_URL"]).run()


if __name__ == "__main__":
    main()
