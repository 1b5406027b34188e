"""Whether a backfill may run: in this environment, now, after these migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from sqla_jobs import clock
from sqla_jobs.backfills.ledger import ENDED
from sqla_jobs.exc import (
    BackfillAppliedError,
    BackfillEnvironmentError,
    BackfillMigrationPendingError,
    BackfillRunningError,
)
from sqla_jobs.models import Backfill
from sqla_jobs.revisions import read_state

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from sqla_jobs.declare.backfill import BackfillSpec
    from sqla_jobs.revisions import MigrationEnvironment


def gate_backfill(
    session: Session,
    spec: BackfillSpec,
    migrations: MigrationEnvironment,
    environment: str | None,
) -> None:
    """Raise why *spec* cannot run, if it cannot; the first of the reasons, in this order.

    The environment; done or skipped (before the migrations: a later one may have
    dropped its columns); somebody runs it; the migrations.
    """
    check_backfill_environment(spec, environment)
    _check_ledger(session, spec)
    _check_migrations(session, spec, migrations)


def check_backfill_environment(spec: BackfillSpec, environment: str | None) -> None:
    """Raise :exc:`.BackfillEnvironmentError` unless *spec* may run in *environment*."""
    if spec.environments is not None and environment not in spec.environments:
        raise BackfillEnvironmentError(spec.name, environment, set(spec.environments))


def _check_ledger(session: Session, spec: BackfillSpec) -> None:
    row = session.execute(
        select(
            Backfill.status,
            Backfill.holder_name,
            Backfill.lease_until,
            (Backfill.lease_until > clock.now()).label("alive"),
        ).where(Backfill.name == spec.name)
    ).first()
    if row is None:
        return
    if row.status in ENDED:
        raise BackfillAppliedError(spec.name, row.status)
    if row.status == "running" and row.alive:
        raise BackfillRunningError(spec.name, row.holder_name, row.lease_until)


def _check_migrations(
    session: Session, spec: BackfillSpec, migrations: MigrationEnvironment
) -> None:
    state = read_state(session, migrations)
    name, after = spec.name, spec.after
    upgrade = [f"alembic upgrade {after}"]
    if state.version_table_missing:
        detail = f"there is no table {migrations.version_table!r} in the database"
        raise BackfillMigrationPendingError(
            name, "version-table-missing", detail, upgrade
        )
    if state.unknown:
        unknown = ", ".join(sorted(state.unknown))
        detail = f"the database has revisions that this code does not know ({unknown})"
        raise BackfillMigrationPendingError(name, "ahead", detail, [])
    folder = {script.revision for script in migrations.script.walk_revisions()}
    if after not in folder:
        detail = f"its after={after!r} is not the full id of a revision"
        raise BackfillMigrationPendingError(name, "after", detail, [])
    if after in state.pending:
        detail = f"revision {after} is not applied"
        raise BackfillMigrationPendingError(name, "after", detail, upgrade)
