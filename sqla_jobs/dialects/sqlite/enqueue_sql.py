"""Writing jobs: the same rules as on PostgreSQL, in steps that one writer can take.

Rows travel as one JSON array, so that a batch is one statement whatever its size.
"""

from __future__ import annotations

from typing import Final

INSERT: Final = """
insert into {job} (
    id, tenant, name, key, queue, state, priority, run_at, max_attempts,
    enqueued_by, traceparent, created_at)
select g.value ->> 'id', g.value ->> 'tenant', g.value ->> 'name', g.value ->> 'key',
       g.value ->> 'queue', 'ready', g.value ->> 'priority',
       coalesce(g.value ->> 'run_at',
                strftime('%Y-%m-%d %H:%M:%f000', {now},
                         (g.value ->> 'after') || ' seconds')),
       g.value ->> 'max_attempts', g.value ->> 'enqueued_by',
       g.value ->> 'traceparent', {now}
  from json_each(:jobs) as g
 where true
 order by g.key
on conflict do nothing
returning id
"""

INSERT_BODIES: Final = """
insert into {body} (job_id, input)
select g.value ->> 'id', g.value ->> 'input'
  from json_each(:jobs) as g
 where g.value ->> 'id' in (select value from json_each(:ids))
"""

EXISTING: Final = """
select id, tenant, name, key, queue, state
  from {job}
 where (tenant, name, key) in (
         select value ->> 'tenant', value ->> 'name', value ->> 'key'
           from json_each(:jobs))
union
select id, tenant, name, key, queue, state
  from {job}
 where id in (select value ->> 'id' from json_each(:jobs))
"""

# One writer, and this transaction is it: what is read here stays as it is.
JUDGE: Final = """
select j.id, j.tenant, j.name, j.key, j.queue, j.state,
       case
         when g.value ->> 'mode' = 'replace' and j.state = 'ready'
              and j.attempted_at is null then 'replaced'
         when g.value ->> 'mode' = 'rerun' and j.state = 'ready' then 'sooner'
         when g.value ->> 'mode' = 'rerun' and j.state in ('running', 'waiting')
           then 'again'
         when g.value ->> 'mode' = 'rerun' then 'reset'
         else 'kept'
       end as act
  from json_each(:jobs) as g join {job} j on j.id = g.value ->> 'id'
"""

_AT: Final = """coalesce(g.value ->> 'run_at',
           strftime('%Y-%m-%d %H:%M:%f000', {now},
                    (g.value ->> 'after') || ' seconds'))"""

RENEW: Final = {
    "sooner": f"""
update {{job}}
   set priority = g.value ->> 'priority', max_attempts = g.value ->> 'max_attempts',
       run_at = min(run_at, {_AT}), rerun = false, rerun_run_at = null
  from (select value from json_each(:jobs)) as g where id = g.value ->> 'id'
""",
    "replaced": f"""
update {{job}}
   set priority = g.value ->> 'priority', max_attempts = g.value ->> 'max_attempts',
       run_at = {_AT}, rerun = false, rerun_run_at = null
  from (select value from json_each(:jobs)) as g where id = g.value ->> 'id'
""",
    "again": f"""
update {{job}}
   set rerun = true, rerun_run_at = {_AT}
  from (select value from json_each(:jobs)) as g where id = g.value ->> 'id'
""",
    "reset": f"""
update {{job}}
   set priority = g.value ->> 'priority', max_attempts = g.value ->> 'max_attempts',
       run_at = {_AT}, state = 'ready', fence = fence + 1, attempt = 0,
       interruptions = 0, attempted_at = null, cancel_requested_at = null,
       cancel_reason = null, finished_at = null, rerun = false, rerun_run_at = null
  from (select value from json_each(:jobs)) as g where id = g.value ->> 'id'
""",
}

RENEW_BODY: Final = {
    False: """
update {body} set input = g.value ->> 'input', rerun_input = null
  from (select value from json_each(:jobs)) as g where job_id = g.value ->> 'id'
""",
    True: """
update {body} set rerun_input = g.value ->> 'input'
  from (select value from json_each(:jobs)) as g where job_id = g.value ->> 'id'
""",
}

# Before a reset: a success is told by the job's row alone, which forgets it then.
KEEP_SUCCESSES: Final = """
insert into {attempt} (job_id, fence, number, started_at, ended_at, outcome)
select id, fence, attempt, attempted_at, finished_at, state
  from {job}
 where id in (select value ->> 'id' from json_each(:jobs)) and state = 'succeeded'
on conflict do nothing
"""

DROP_OUTPUTS: Final = """
delete from {output} where job_id in (select value ->> 'id' from json_each(:jobs))
"""
