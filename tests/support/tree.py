"""The source tree as data, for tests about its structure."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sqla_jobs"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@attrs.frozen
class Module:
    """One module of the package."""

    path: Path
    text: str = attrs.field(repr=False)
    tree: ast.Module = attrs.field(repr=False, eq=False)

    @property
    def name(self) -> str:
        """Its path inside the package: ``queue/claim.py``."""
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def lines(self) -> list[str]:
        """Its source lines."""
        return self.text.splitlines()


@cache
def modules() -> tuple[Module, ...]:
    """Return all modules of the package."""
    return tuple(
        Module(path, text := path.read_text("utf-8"), ast.parse(text))
        for path in sorted(PACKAGE.rglob("*.py"))
    )


@cache
def project_files() -> tuple[Path, ...]:
    """Return every file that is, or would be, committed and is there."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (ROOT / name for name in listed.split("\0") if name)
    return tuple(sorted({path for path in paths if path.is_file()}))


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function and method, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def length(node: Function) -> int:
    """Return how many lines a function takes, decorators left out."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def public_definitions(
    body: list[ast.stmt], prefix: str = ""
) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yield public classes, functions and methods, with their dotted names.

    Left out are overloads (the implementation has the words) and setters.
    """
    for node in body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        decorators = {ast.unparse(d).split(".")[-1] for d in node.decorator_list}
        if decorators & {"overload", "setter", "inplace"}:
            continue
        yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node.body, f"{prefix}{node.name}.")


def documented_assignments(tree: ast.Module) -> set[str]:
    """Return the module-level names whose assignment a docstring follows."""
    names = set()
    for node, after in zip(tree.body, tree.body[1:], strict=False):
        if not isinstance(after, ast.Expr) or not isinstance(after.value, ast.Constant):
            continue
        if not isinstance(after.value.value, str):
            continue
        if isinstance(node, ast.Assign):
            names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names
