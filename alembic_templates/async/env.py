"""How migrations are run. Set `target_metadata` to your models' metadata."""

import asyncio
from logging.config import fileConfig

import sqlalchemy as sa
from alembic import context
from sqlalchemy.ext.asyncio import async_engine_from_config

from sqla_jobs.alembic import include_name

config = context.config
if config.config_file_name is not None:
    fileConfig(config.config_file_name, disable_existing_loggers=False)

# from shop.models import Base
# target_metadata = Base.metadata
target_metadata = None

# The tables of sqla_jobs have revisions of their own (`sqla-jobs db revision`).
# Each migration is a transaction of its own: one that waits for a backfill must not
# take the revisions before it back.
OPTIONS = {
    "target_metadata": target_metadata,
    "include_name": include_name,
    "transaction_per_migration": True,
}


def run_offline() -> None:
    """Print the SQL."""
    context.configure(
        url=config.get_main_option("sqlalchemy.url"),
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
        **OPTIONS,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_on(connection: sa.Connection) -> None:
    """Run the migrations on *connection*."""
    if connection.dialect.name == "postgresql":
        # Two deployments at once: the second waits here, then finds nothing to do.
        # The lock is the session's, and the transaction that took it is over: else
        # all migrations would run inside of it.
        connection.execute(sa.text("SELECT pg_advisory_lock(hashtext('alembic'))"))
        connection.commit()
    context.configure(connection=connection, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


async def run_online() -> None:
    """Run the migrations, one process at a time."""
    engine = async_engine_from_config(
        config.get_section(config.config_ini_section, {}),
        prefix="sqlalchemy.",
        poolclass=sa.pool.NullPool,
    )
    async with engine.connect() as connection:
        await connection.run_sync(run_on)
    await engine.dispose()


if context.is_offline_mode():
    run_offline()
else:
    asyncio.run(run_online())
