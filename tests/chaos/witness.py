"""The witness: triggers that write down what happened to jobs and effects.

They belong to the test. Each row's changes are numbered under the row's lock, so the
numbers of one job are in the order of the commits. The deferred trigger runs inside the
COMMIT, after the library's last statement: it sees whose the job was at that moment.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, insert

from sqla_jobs.models import metadata
from tests.chaos.tables import ACCOUNTS, Account, Base

POSTGRESQL = """
create table chaos_log (
    seq bigserial primary key,
    job_id uuid not null,
    op text not null,
    old_state text, state text,
    old_fence bigint, fence bigint,
    old_attempt integer, attempt integer, max_attempts integer,
    worker_id uuid,
    old_rerun boolean, rerun boolean,
    old_asked boolean, asked boolean
);
create index on chaos_log (job_id, seq);

create function chaos_log() returns trigger language plpgsql as $$
begin
    insert into chaos_log (
        job_id, op, old_state, state, old_fence, fence, old_attempt, attempt,
        max_attempts, worker_id, old_rerun, rerun, old_asked, asked)
    values (
        coalesce(new.id, old.id), tg_op, old.state, new.state, old.fence, new.fence,
        old.attempt, new.attempt, new.max_attempts, new.worker_id, old.rerun,
        new.rerun, old.cancel_requested_at is not null,
        new.cancel_requested_at is not null);
    return null;
end $$;
create trigger chaos_log after insert or update or delete on {job}
    for each row execute function chaos_log();

create table chaos_seen (
    effect_id bigint not null, state text not null, fence bigint not null
);
create function chaos_seen() returns trigger language plpgsql as $$
begin
    insert into chaos_seen (effect_id, state, fence)
    select new.id, j.state, j.fence from {job} j where j.id = new.job_id;
    return null;
end $$;
create constraint trigger chaos_seen after insert on chaos_effect
    deferrable initially deferred for each row execute function chaos_seen();
"""


def create(engine: Engine) -> None:
    """Create all tables and the witness in an empty database."""
    metadata.create_all(engine)
    watch(engine)


def watch(engine: Engine) -> None:
    """Add the business and the witness to a database with the library's tables."""
    with engine.begin() as connection:
        Base.metadata.create_all(connection)
        rows = [{"id": number, "balance": 0} for number in range(ACCOUNTS)]
        connection.execute(insert(Account), rows)
        _install(connection)


def _install(connection: Connection) -> None:
    plain = connection.execution_options(no_parameters=True)
    plain.exec_driver_sql(POSTGRESQL.format(job="sqla_job"))
