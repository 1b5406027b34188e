"""JSON for programs: one document on stdout."""

from __future__ import annotations

import json

import click


def write(data: object) -> None:
    """Print *data*, escaped to ASCII: no terminal sequence hides in a name or error."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=True))
