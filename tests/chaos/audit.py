"""The audit: what must hold after the chaos, each rule with the query that breaks it.

A rule is kept when its query returns nothing. The queries read the library's tables, the
witness's log (:mod:`tests.chaos.witness`) and the journals; no code of the library
takes part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
from sqlalchemy import Connection, text

from sqla_jobs.states import FINISHED, TRANSITIONS
from tests.chaos import kinds
from tests.chaos.journal import COMMITTED, ROLLED_BACK, WRONG
from tests.chaos.producer import SHARED

SHOWN = 5


@attrs.frozen
class Finding:
    """One rule, and the first rows that break it."""

    says: str
    broken: list[str]

    @property
    def holds(self) -> bool:
        """Whether nothing breaks the rule."""
        return not self.broken


# A success leaves its mark in one of two places: the job's state, or, when a rerun
# follows at once, the history of attempts.
SUCCESSES = """
    select job_id, old_fence as fence from chaos_log
     where old_state = 'running' and state = 'succeeded'
    union all
    select job_id, fence from sqla_attempt where outcome = 'succeeded'
"""
CLAIMS = """
    select job_id, fence, attempt, worker_id, seq from chaos_log
     where op = 'UPDATE' and state = 'running' and old_state <> 'running'
"""
# What came after a claim, while its fence was the job's.
ENDS = f"""
    select c.*, e.state as end_state, e.fence as end_fence, e.attempt as end_attempt
      from ({CLAIMS}) c
      left join lateral (
        select * from chaos_log l
         where l.job_id = c.job_id and l.seq > c.seq and l.old_state = 'running'
           and l.state <> 'running'
         order by l.seq limit 1) e on true
"""
FINISHED_STATES = ", ".join(f"'{state}'" for state in sorted(FINISHED))

RULES: tuple[tuple[str, str], ...] = (
    (
        "every job whose commit a producer saw exists",
        """select j.name, j.key from chaos_journal j
            where j.what = :committed and not exists (
              select 1 from sqla_job s where s.name = j.name and s.key = j.key)""",
    ),
    (
        "no job of a rolled-back transaction exists",
        """select j.name, j.key from chaos_journal j
             join sqla_job s on s.name = j.name and s.key = j.key
            where j.what = :rolled_back""",
    ),
    (
        "the library told every producer the truth",
        "select key, says from chaos_journal where what = :wrong",
    ),
    (
        "a business row and its job exist together or not at all",
        """select o.key, s.key from chaos_order o
             full join (select name, key from sqla_job
                         where key not like :shared and key not like 'child:%') s
               on s.name = o.name and s.key = o.key
            where o.key is null or s.key is null""",
    ),
    (
        "a request that was committed met a job, and a shared job a request",
        """select r.key, s.key from (select distinct name, key from chaos_request) r
             full join sqla_job s on s.name = r.name and s.key = r.key
            where s.key is null or (r.key is null and s.key like :shared)""",
    ),
    (
        "every job is settled",
        f"""select name, key, state, attempt, worker_id from sqla_job
             where state not in ({FINISHED_STATES})""",
    ),
    (
        "every job ended as its kind may",
        """select name, key, state, attempt, max_attempts from sqla_job
            where not (state = 'succeeded' and not name = any(:doomed)
                       or state = 'dead' and name = any(:doomed)
                       or state = 'cancelled' and cancel_requested_at is not null)""",
    ),
    (
        "each success has its effect exactly once, and nothing else has one",
        f"""select s.job_id, s.fence, e.job_id, e.fence, e.effects
              from (select s.* from ({SUCCESSES}) s join sqla_job j on j.id = s.job_id
                     where not j.name = any(:without_session)) s
              full join (select job_id, fence, count(*) as effects from chaos_effect
                          where part = 'final' group by 1, 2) e
                on e.job_id = s.job_id and e.fence = s.fence
             where s.job_id is null or e.effects is distinct from 1""",
    ),
    (
        "every commit of an attempt's session was made while it owned its job",
        """select e.name, e.job_id, e.part, e.fence, s.state, s.fence
             from chaos_effect e left join chaos_seen s on s.effect_id = e.id
            where not coalesce(
              case e.part
                when 'early' then s.state = 'running' and s.fence = e.fence
                else s.state = 'succeeded' and s.fence = e.fence
                  or s.state = 'ready' and s.fence = e.fence + 1
              end, false)""",
    ),
    (
        "the balances count the successes",
        """select b.sum, e.count
             from (select sum(balance) as sum from chaos_account) b,
                  (select count(*) as count from chaos_effect
                    where part = 'final' and name = any(:paying)) e
            where b.sum <> e.count""",
    ),
    (
        "a child exists if and only if its parent has succeeded",
        """select p.key, c.key
             from (select distinct 'child:' || j.key as key from chaos_effect e
                     join sqla_job j on j.id = e.job_id
                    where e.name = 'chaos.parent' and e.part = 'final') p
             full join (select key from sqla_job where name = 'chaos.child') c
               on c.key = p.key
            where p.key is null or c.key is null""",
    ),
    (
        "what returned a value has it stored, once it succeeded",
        """select s.name, s.key, o.output from sqla_job s
             left join sqla_job_output o on o.job_id = s.id
            where s.name = any(:without_session) and s.state = 'succeeded'
              and cast(o.output as text) is distinct from cast(to_json(s.key) as text)""",
    ),
    (
        "a fence never goes back, and grows with every change of ownership",
        f"""select job_id, seq, old_state, state, old_fence, fence from chaos_log
             where op = 'UPDATE'
               and not case
                 when state = 'running' and old_state <> 'running'
                   then fence = old_fence + 1
                 when old_state in ({FINISHED_STATES}) then fence = old_fence + 1
                 when old_state = 'running' and state = 'ready'
                   then fence in (old_fence, old_fence + 1)
                 when old_state = 'running' and state <> 'running'
                   then fence in (old_fence, old_fence + 1)
                 else fence = old_fence end""",
    ),
    (
        "only allowed transitions were made",
        """select job_id, seq, op, old_state, state from chaos_log
            where op = 'DELETE' or op = 'INSERT' and state <> 'ready'
               or op = 'UPDATE' and old_state <> state
                  and not old_state || '>' || state = any(:allowed)""",
    ),
    (
        "no attempt was numbered above the limit",
        (
            "select job_id, seq, attempt, max_attempts from chaos_log"
            " where attempt > max_attempts"
        ),
    ),
    (
        "a job runs if and only if it has an owner",
        (
            "select job_id, seq, state, worker_id from chaos_log"
            " where op <> 'DELETE' and (state = 'running') <> (worker_id is not null)"
        ),
    ),
    (
        "every claim is accounted for: success, given back, or a row of its history",
        f"""select e.job_id, e.fence, e.attempt, e.end_state, e.end_fence, e.end_attempt
              from ({ENDS}) e
              left join sqla_attempt a on a.job_id = e.job_id and a.fence = e.fence
             where case
               when a.job_id is not null
                 then a.number <> e.attempt or a.worker_id <> e.worker_id
               else not coalesce(
                 e.end_state = 'succeeded' and e.end_fence = e.fence
                 or e.end_fence = e.fence and e.end_attempt = e.attempt - 1, false)
             end""",
    ),
    (
        "every attempt of the history was claimed",
        f"""select a.job_id, a.fence, a.number, a.outcome from sqla_attempt a
              left join ({CLAIMS}) c on c.job_id = a.job_id and c.fence = a.fence
             where c.job_id is null""",
    ),
    (
        "a job that was rescued has the lost attempt in its history",
        f"""select e.job_id, e.fence, a.outcome from ({ENDS}) e
              join sqla_attempt a on a.job_id = e.job_id and a.fence = e.fence
             where e.end_fence > e.fence and a.outcome not in (
                 'lost', 'timed_out', 'succeeded', 'dead', 'cancelled')""",
    ),
    (
        "a rerun, and an operator's retry, is followed by a run or a cancel",
        f"""select a.job_id, a.seq from chaos_log a
             where (a.rerun and not a.old_rerun
                    or a.old_state in ({FINISHED_STATES}) and a.state = 'ready')
               and not exists (
                 select 1 from chaos_log b
                  where b.job_id = a.job_id and b.seq > a.seq
                    and (b.state = 'running' and b.old_state <> 'running'
                         or b.asked and not b.old_asked))""",
    ),
    (
        "no worker is left with a lease",
        (
            "select id, host, pid from sqla_worker"
            " where lease_until > statement_timestamp()"
        ),
    ),
    (
        "no session is left in a transaction",
        """select pid, state, query from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()
              and xact_start is not null and backend_type = 'client backend'""",
    ),
    (
        "the database met no deadlock",
        (
            "select deadlocks from pg_stat_database"
            " where datname = current_database() and deadlocks > 0"
        ),
    ),
)


def load_journals(connection: Connection, lines: Iterable[dict[str, Any]]) -> None:
    """Put the producers' journals beside the tables they speak of."""
    connection.execute(
        text("create temporary table chaos_journal"
             " (what text, name text, key text, says text)")
    )  # fmt: skip
    rows = [
        {name: line.get(name) for name in ("what", "name", "key", "says")}
        for line in lines
    ]
    if rows:
        connection.execute(
            text("insert into chaos_journal values (:what, :name, :key, :says)"), rows
        )
    connection.execute(text("create index on chaos_journal (name, key)"))
    connection.execute(text("analyze"))


def audit(connection: Connection) -> list[Finding]:
    """Return every rule with what breaks it; the journals have been loaded."""
    known = {
        "committed": COMMITTED,
        "rolled_back": ROLLED_BACK,
        "wrong": WRONG,
        "shared": f"{SHARED}%",
        "doomed": sorted(kinds.DOOMED),
        "without_session": sorted(kinds.WITHOUT_SESSION),
        "paying": sorted(kinds.PAYING),
        "allowed": [f"{a}>{b}" for a, after in TRANSITIONS.items() for b in after],
    }
    findings = []
    for says, query in RULES:
        statement = text(query)
        used = {name: known[name] for name in statement.compile().params}
        rows = connection.execute(statement, used).fetchmany(SHOWN)
        findings.append(Finding(says, [str(tuple(row)) for row in rows]))
    return findings
