"""Claiming jobs, and asking when the next one is due."""

from __future__ import annotations

from typing import Final

PRIORITIES: Final = range(10)

# One probe per priority, as on PostgreSQL: the run_at range of each is contiguous in
# the index, so future jobs at better priorities cost nothing.
PICK: Final = (
    "select id from ("
    + " union all ".join(
        f"""
select * from (
  select id, priority, run_at from {{job}}
   where state in ('ready', 'waiting') and lane is null
     and queue = :queue and priority = {priority} and run_at <= {{now}}
     and name not in (select value from json_each(:unknown))
   order by run_at, id limit :room)"""
        for priority in PRIORITIES
    )
    + ") order by priority, run_at, id limit :room"
)

CLAIM: Final = """
update {job}
   set state = 'running', attempt = attempt + 1, fence = fence + 1,
       worker_id = :worker_id, attempted_at = {now},
       deadline_at = (select strftime('%Y-%m-%d %H:%M:%f000', {now},
                                      l.value || ' seconds')
                        from json_each(:limits) l where l.key = name)
 where id in (select value from json_each(:ids))
   and exists (select 1 from {worker}
                where {worker}.id = :worker_id and lease_until > {now})
returning id, fence, name, tenant, queue, key, priority, attempt, max_attempts,
          interruptions, run_at, traceparent, enqueued_by,
          (select case when length(b.input) <= :inline then b.input end
             from {body} b where b.job_id = {job}.id) as input
"""

INPUTS: Final = """
select job_id, input from {body} where job_id in (select value from json_each(:ids))
"""

NEXT_DUE: Final = (
    "select min(run_at), {now} from ("
    + " union all ".join(
        f"""
select * from (
  select run_at from {{job}}
   where state in ('ready', 'waiting') and lane is null
     and queue = q.value and priority = {priority}
     and name not in (select value from json_each(:unknown))
   order by run_at limit 1)"""
        for priority in PRIORITIES
    )
    + ")"
).replace("queue = q.value", "queue = :queue")
