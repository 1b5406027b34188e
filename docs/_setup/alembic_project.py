"""Tutorial 4: what `alembic init migrations` does, and the page's two changes."""

from pathlib import Path

from alembic import command
from alembic.config import Config

command.init(Config("alembic.ini"), "migrations")
ini, env = Path("alembic.ini"), Path("migrations/env.py")
lines = [
    "sqlalchemy.url = sqlite:///shop.db" if line.startswith("sqlalchemy.url") else line
    for line in ini.read_text().splitlines()
]
ini.write_text("\n".join(lines))
given = "connection=connection, target_metadata=target_metadata"
source = env.read_text()
assert given in source
env.write_text(source.replace(given, f"{given}, transaction_per_migration=True"))
