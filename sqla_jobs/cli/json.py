"""JSON for programs: one document on stdout; docs/reference/cli-json.md has the shapes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = 1
"""Grows when a field goes away or means something else; new fields do not count."""


def write(data: Mapping[str, object]) -> None:
    """Print *data* with the version of its shape.

    Escaped to ASCII: no terminal sequence hides in a name or error. Integers are
    written whole, whatever their size.
    """
    click.echo(json.dumps({"version": VERSION, **data}, indent=2, ensure_ascii=True))
