"""How migrations are run. Set `target_metadata` to your models' metadata."""

from logging.config import fileConfig

import sqlalchemy as sa
from alembic import context

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


def run_online() -> None:
    """Run the migrations, one process at a time."""
    engine = sa.engine_from_config(
        config.get_section(config.config_ini_section, {}),
        prefix="sqlalchemy.",
        poolclass=sa.pool.NullPool,
    )
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            # Two deployments at once: the second waits here, then finds nothing to do.
            # The lock is the session's, and the transaction that took it is over: else
            # all migrations would run inside of it.
            connection.execute(sa.text("SELECT pg_advisory_lock(hashtext('alembic'))"))
            connection.commit()
        context.configure(connection=connection, **OPTIONS)
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
