"""``sqla-jobs templates``: where the Alembic templates are."""

from __future__ import annotations

from pathlib import Path

import click

import sqla_jobs
from sqla_jobs.cli.command import Verb


@click.command(cls=Verb)
def templates() -> None:
    """Print the folder of the Alembic templates.

    alembic init -t "$(sqla-jobs templates)/generic" migrations
    """
    click.echo(templates_folder())


def templates_folder() -> Path:
    """Return the folder: inside the installed package, beside it in a checkout."""
    package = Path(sqla_jobs.__file__).parent
    inside = package / "alembic_templates"
    return inside if inside.is_dir() else package.parent / "alembic_templates"
