"""A backfill runs after its migration, and in its environments alone."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from sqla_jobs import Jobs, backfills
from sqla_jobs.exc import (
    BackfillAppliedError,
    BackfillEnvironmentError,
    BackfillMigrationPendingError,
    BackfillRunningError,
    MigrationsUnreadableError,
)
from sqla_jobs.revisions import find_environment, read_state
from tests.backfills.migrations import stamp, write_folder
from tests.backfills.tables import Price

pytestmark = pytest.mark.each_kind


@pytest.fixture
def folder(tmp_path):
    return write_folder(
        tmp_path / "migrations",
        aaaa=(None, None),
        bbbb=("aaaa", None),
        cccc=("bbbb", None),
    )


def declare(after="bbbb", **options):
    rows = select(Price).where(Price.cents.is_(None))
    return Jobs().backfill("cents", after=after, rows=rows, **options)(
        lambda session, rows: None
    )


def gate(Session, spec, folder, environment=None):
    with Session() as session:
        backfills.gate_backfill(session, spec, find_environment(folder), environment)


def test_the_folder_is_compared_with_the_version_table(Session, engine, folder):
    env = find_environment(folder)
    with Session() as session:
        state = read_state(session, env)
    assert state.version_table_missing
    assert list(state.pending) == ["aaaa", "bbbb", "cccc"]

    stamp(engine, "bbbb")
    with Session() as session:
        state = read_state(session, env)
    assert (list(state.pending), state.unknown) == (["cccc"], frozenset())


@pytest.mark.covers("C88")
def test_branches_and_dependencies_are_followed(Session, engine, tmp_path):
    """A revision reached by ``depends_on`` is applied, though no head says so."""
    folder = write_folder(
        tmp_path / "migrations",
        aaaa=(None, None),
        left=("aaaa", None),
        right=("aaaa", "left"),
        other=(None, None),
        more=("other", None),
    )
    stamp(engine, "right", "other")
    with Session() as session:
        state = read_state(session, find_environment(folder))
    assert list(state.pending) == ["more"]


@pytest.mark.covers("C89")
def test_revisions_of_the_database_are_matched_whole(Session, engine, folder):
    stamp(engine, "bbb")
    with Session() as session:
        state = read_state(session, find_environment(folder))
    assert state.unknown == {"bbb"}


def test_it_waits_for_its_migration_and_says_how_to_apply_it(Session, engine, folder):
    with pytest.raises(BackfillMigrationPendingError) as refused:
        gate(Session, declare(), folder)
    assert refused.value.reason == "version-table-missing"

    stamp(engine, "aaaa")
    with pytest.raises(BackfillMigrationPendingError) as refused:
        gate(Session, declare(), folder)
    assert refused.value.reason == "after"
    assert "`alembic upgrade bbbb`" in str(refused.value)

    stamp(engine, "bbbb")
    gate(Session, declare(), folder)  # The contract behind it may wait.


def test_a_database_ahead_of_the_code_is_a_reason_of_its_own(Session, engine, folder):
    stamp(engine, "dddd")
    with pytest.raises(BackfillMigrationPendingError) as refused:
        gate(Session, declare(), folder)
    assert (refused.value.reason, refused.value.commands) == ("ahead", [])


def test_a_part_of_a_revision_id_is_no_revision(Session, engine, folder):
    stamp(engine, "bbbb")
    with pytest.raises(BackfillMigrationPendingError, match="full id"):
        gate(Session, declare(after="bb"), folder)


def test_environments_are_judged_first(Session, engine, folder):
    spec = declare(environments={"staging"})
    for environment in (None, "production"):
        with pytest.raises(BackfillEnvironmentError):
            gate(Session, spec, folder, environment)
    stamp(engine, "bbbb")
    gate(Session, spec, folder, "staging")


def test_done_and_running_are_judged_before_the_migrations(Session, prices, folder):
    def judge(session, rows):
        for row in rows:
            row.cents = 1
        session.flush()
        with pytest.raises(BackfillRunningError):
            backfills.gate_backfill(session, spec, find_environment(folder), None)

    rows = select(Price).where(Price.cents.is_(None))
    spec = Jobs().backfill("cents", after="bbbb", rows=rows)(judge)
    backfills.run_backfill(Session, spec, by="me")
    with pytest.raises(BackfillAppliedError):
        gate(Session, spec, folder)


def test_what_cannot_be_read_is_refused_with_its_name(tmp_path, folder):
    with pytest.raises(MigrationsUnreadableError, match="no such file"):
        find_environment(tmp_path / "nowhere")
    (folder / "versions" / "dddd.py").write_text("import nothing_of_that_name")
    with pytest.raises(MigrationsUnreadableError, match="nothing_of_that_name"):
        find_environment(folder)
