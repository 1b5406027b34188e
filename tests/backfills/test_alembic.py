"""Migrations that wait for a backfill, run by Alembic itself."""

from __future__ import annotations

import io

import pytest
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import create_engine, insert, inspect, select, text, update
from sqlalchemy.orm import sessionmaker

import sqla_jobs
from sqla_jobs import Jobs, JobSession, backfills, clock
from sqla_jobs.exc import BackfillPendingError
from sqla_jobs.models import Backfill, BackfillFailure
from tests.backfills.tables import Price

pytestmark = pytest.mark.each_kind

ENV = """\
from alembic import context
from sqlalchemy import NullPool, create_engine

url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    context.configure(url=url, literal_binds=True)
    context.run_migrations()
else:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection, transaction_per_migration=True)
        with context.begin_transaction():
            context.run_migrations()
"""
START = """\
import sqlalchemy as sa
from alembic import op
import sqla_jobs

revision, down_revision = "aaaa", None


def upgrade():
    sqla_jobs.metadata.create_all(op.get_bind())
    op.create_table(
        "price",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("amount", sa.Integer, nullable=False),
        sa.Column("changes", sa.Integer, nullable=False),
    )
"""
EXPAND = """\
import sqlalchemy as sa
from alembic import op
from sqla_jobs.alembic import declare_backfill

revision, down_revision = "bbbb", "aaaa"


def upgrade():
    op.add_column("price", sa.Column("cents", sa.Integer))
    declare_backfill("cents", table="price")


def downgrade():
    op.drop_column("price", "cents")
"""
CONTRACT = """\
from alembic import op
from sqla_jobs.alembic import require_backfill

revision, down_revision = "cccc", "bbbb"


def upgrade():
    require_backfill("cents")
    with op.batch_alter_table("price") as batch:
        batch.alter_column("cents", nullable=False)
"""


@pytest.fixture
def config(tmp_path, empty_url):
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    for name, source in {
        "env": ENV,
        "versions/start": START,
        "versions/expand": EXPAND,
        "versions/contract": CONTRACT,
    }.items():
        (folder / f"{name}.py").write_text(source)
    config = Config(output_buffer=io.StringIO())
    config.set_main_option("script_location", str(folder))
    url = empty_url.render_as_string(hide_password=False)
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


@pytest.fixture
def Sessions(empty_url):
    engine = create_engine(empty_url)
    yield sessionmaker(engine, class_=JobSession)
    engine.dispose()


@pytest.fixture
def spec():
    def fill(session, rows):
        for row in rows:
            row.cents = row.amount * 100

    rows = select(Price).where(Price.cents.is_(None), Price.amount != -1)
    return Jobs().backfill("cents", after="bbbb", rows=rows)(fill)


def add_prices(Sessions, *ids):
    with Sessions.begin() as session:
        for n in ids:
            price = insert(Price).values(id=n, amount=n, changes=0)
            session.execute(price)


def version(Sessions):
    with Sessions() as session:
        return session.scalar(text("SELECT version_num FROM alembic_version"))


def go_through_once_more(config, Sessions, spec):
    """What the refusal says: from the start again, where one row is to do."""
    with Sessions.begin() as session:
        backfills.resume_backfill(session, "cents", from_start=True)
    assert backfills.run_backfill(Sessions, spec, by="me").rows == 1
    command.upgrade(config, "head")


def test_the_contract_waits_for_the_backfill(config, Sessions, spec):
    command.upgrade(config, "aaaa")
    add_prices(Sessions, 1, 2, 3)

    with pytest.raises(CommandError) as refused:
        command.upgrade(config, "head")
    error = refused.value
    assert isinstance(error, BackfillPendingError)
    assert (error.reason, error.commands) == (
        "not-done",
        ["sqla-jobs backfill run cents"],
    )
    # One transaction per migration: the expanding one stays.
    assert version(Sessions) == "bbbb"

    assert backfills.run_backfill(Sessions, spec, by="me").rows == 3
    command.upgrade(config, "head")
    assert version(Sessions) == "cccc"
    with Sessions() as session:
        columns = inspect(session.connection()).get_columns("price")
        assert session.scalars(select(Price.cents).order_by(Price.id)).all() == [
            *(100, 200, 300)
        ]
    assert next(c for c in columns if c["name"] == "cents")["nullable"] is False


def test_a_new_database_goes_from_base_to_head(config, Sessions):
    command.upgrade(config, "head")
    assert version(Sessions) == "cccc"
    with Sessions() as session:
        assert session.get_one(Backfill, "cents").status == "skipped"


def test_rows_written_since_it_was_done_shut_the_gate_again(config, Sessions, spec):
    """By a process of the old release, which knows nothing of the new column."""
    command.upgrade(config, "bbbb")
    add_prices(Sessions, 1)
    with Sessions.begin() as session:
        session.execute(update(Backfill).values(status="pending"))
    backfills.run_backfill(Sessions, spec, by="me")
    add_prices(Sessions, 2)

    with pytest.raises(BackfillPendingError) as refused:
        command.upgrade(config, "head")
    assert refused.value.reason == "rows-remain"
    assert "`sqla-jobs backfill resume --from-start cents`" in str(refused.value)

    go_through_once_more(config, Sessions, spec)
    assert version(Sessions) == "cccc"


def test_rows_written_since_the_table_was_empty_shut_the_gate(config, Sessions, spec):
    """It was skipped, and a process of the old release has written since."""
    command.upgrade(config, "bbbb")
    add_prices(Sessions, 1)
    with pytest.raises(BackfillPendingError) as refused:
        command.upgrade(config, "head")
    assert refused.value.reason == "rows-remain"

    go_through_once_more(config, Sessions, spec)
    assert version(Sessions) == "cccc"


def test_what_was_said_before_a_downgrade_counts_no_more(config, Sessions, spec):
    """A reason of then would make a skip somebody's word, and open the gate."""
    command.upgrade(config, "aaaa")
    add_prices(Sessions, 1)
    command.upgrade(config, "bbbb")
    with Sessions.begin() as session:
        session.execute(update(Backfill).values(status="paused", reason="lunch"))
        session.execute(text("DELETE FROM price"))
        session.execute(
            insert(BackfillFailure).values(
                backfill="cents",
                key_text="[1]",
                error_type="E",
                error="",
                at=clock.now(),
                state="open",
            )
        )
    command.downgrade(config, "aaaa")
    command.upgrade(config, "bbbb")
    add_prices(Sessions, 1)
    with pytest.raises(BackfillPendingError) as refused:
        command.upgrade(config, "head")
    assert refused.value.reason == "rows-remain"
    go_through_once_more(config, Sessions, spec)


def test_after_a_downgrade_it_is_to_do_once_more(config, Sessions, spec):
    command.upgrade(config, "aaaa")
    add_prices(Sessions, 1, 2)
    command.upgrade(config, "bbbb")
    backfills.run_backfill(Sessions, spec, by="me")
    command.downgrade(config, "aaaa")

    command.upgrade(config, "bbbb")
    with Sessions() as session:
        row = session.get_one(Backfill, "cents")
    assert (row.status, row.rows_done, row.fence) == ("pending", 0, 2)
    assert backfills.run_backfill(Sessions, spec, by="me").rows == 2


def test_without_a_database_it_is_refused(config):
    with pytest.raises(BackfillPendingError) as refused:
        command.upgrade(config, "aaaa:bbbb", sql=True)
    assert refused.value.reason == "offline"


def test_the_pattern_of_a_like_reaches_the_database_as_it_is(config, Sessions):
    """Drivers take a percent sign for a placeholder."""
    command.upgrade(config, "bbbb")
    with Sessions() as session:
        dialect = session.get_bind().dialect
        rows = select(Price).where(
            Price.id.cast(sqla_jobs.models.Job.name.type).like("1%")
        )
        target = backfills.keys.target_of(
            Jobs().backfill("x", after="b", rows=rows)(lambda session, rows: None)
        )
        sql = target.remain_sql(dialect)
        assert session.connection().exec_driver_sql(sql).first() is None
        session.execute(insert(Price).values(id=12, amount=1, changes=0))
        assert session.connection().exec_driver_sql(sql).first() is not None
