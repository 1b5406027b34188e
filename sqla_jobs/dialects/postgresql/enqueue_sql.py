"""Writing jobs: insert without a target, look at duplicates, replace or rerun them."""

from __future__ import annotations

from typing import Final

# Untargeted ON CONFLICT: a targeted one raises UniqueViolation while the index is
# rebuilt by REINDEX CONCURRENTLY. Never DO UPDATE: it would lock the original row and
# hide it from claims until this transaction ends. The order is the caller's (sorted by
# identity), so that two transactions meet the same keys in the same order.
INSERT: Final = """
with given as (
    select *
      from unnest(
             cast(cast(:ids as text[]) as uuid[]), cast(:tenants as text[]),
             cast(:names as text[]), cast(:keys as text[]), cast(:queues as text[]),
             cast(:priorities as smallint[]), cast(:inputs as text[]),
             cast(:max_attempts as integer[]),
             cast(cast(:run_ats as text[]) as timestamptz[]),
             cast(cast(:afters as text[]) as double precision[]),
             cast(:enqueued_bys as text[]), cast(:traceparents as text[]))
           with ordinality
        as g(id, tenant, name, key, queue, priority, input, max_attempts, run_at,
             after, enqueued_by, traceparent, place)
), inserted as (
    insert into {job} (
        id, tenant, name, key, queue, state, priority, run_at, max_attempts,
        enqueued_by, traceparent, created_at)
    select id, tenant, name, key, queue, 'ready', priority,
           coalesce(run_at, {now} + after * interval '1 second'), max_attempts,
           enqueued_by, traceparent, {now}
      from given
     order by place
    on conflict do nothing
    returning id
), bodies as (
    insert into {body} (job_id, input)
    select g.id, cast(g.input as json) from given g join inserted using (id)
)
select cast(id as text) from inserted
"""

EXISTING: Final = """
select cast(j.id as text), j.tenant, j.name, j.key, j.queue, j.state, 'kept'
  from {job} j
  join unnest(cast(:tenants as text[]), cast(:names as text[]), cast(:keys as text[]))
       as g(tenant, name, key)
 using (tenant, name, key)
union
select cast(j.id as text), j.tenant, j.name, j.key, j.queue, j.state, 'kept'
  from {job} j
 where j.id = any(cast(cast(:ids as text[]) as uuid[]))
"""

# A ready row is locked too, so that no claim starts it before this commit; the rows
# are locked in id order, whatever their state: two guarded updates would lose the run
# when a settle falls between them.
LOCK: Final = """
select cast(id as text) from {job}
 where id = any(cast(cast(:ids as text[]) as uuid[]))
 order by id
   for update
"""

# A success is told by the job's row alone, which forgets it in a reset: it is recorded.
RENEW: Final = """
with given as (
    select *, coalesce(due, {now} + after * interval '1 second') as at
      from unnest(
             cast(cast(:ids as text[]) as uuid[]), cast(:modes as text[]),
             cast(:priorities as smallint[]), cast(:inputs as text[]),
             cast(:max_attempts as integer[]),
             cast(cast(:run_ats as text[]) as timestamptz[]),
             cast(cast(:afters as text[]) as double precision[]))
        as g(id, mode, new_priority, new_input, new_max_attempts, due, after)
), judged as (
    select g.*,
           case
             when g.mode = 'replace' and j.state = 'ready' and j.attempted_at is null
               then 'replaced'
             when g.mode = 'rerun' and j.state = 'ready' then 'sooner'
             when g.mode = 'rerun' and j.state in ('running', 'waiting') then 'again'
             when g.mode = 'rerun' then 'reset'
             else 'kept'
           end as act
      from given g join {job} j on j.id = g.id
), ended as (
    insert into {attempt} (
        job_id, fence, number, started_at, ended_at, outcome)
    select j.id, j.fence, j.attempt, j.attempted_at, j.finished_at, j.state
      from judged join {job} j on j.id = judged.id
     where judged.act = 'reset' and j.state = 'succeeded'
    on conflict do nothing
), changed as (
    update {job} j
       set priority = case when act = 'again' then j.priority else new_priority end,
           run_at = case act when 'sooner' then least(j.run_at, at)
                             when 'again' then j.run_at else at end,
           rerun = (act = 'again'),
           rerun_run_at = case when act = 'again' then at end,
           state = case when act = 'reset' then 'ready' else j.state end,
           fence = j.fence + case when act = 'reset' then 1 else 0 end,
           attempt = case when act = 'reset' then 0 else j.attempt end,
           interruptions = case when act = 'reset' then 0 else j.interruptions end,
           max_attempts = case when act = 'again' then j.max_attempts
                               else new_max_attempts end,
           attempted_at = case when act = 'reset' then null else j.attempted_at end,
           cancel_requested_at = case when act = 'reset' then null
                                      else j.cancel_requested_at end,
           cancel_reason = case when act = 'reset' then null
                                else j.cancel_reason end,
           finished_at = case when act = 'reset' then null else j.finished_at end
      from judged
     where j.id = judged.id and act <> 'kept'
    returning j.id, act
), bodies as (
    update {body} b
       set input = case when c.act = 'again' then b.input
                        else cast(g.new_input as json) end,
           rerun_input = case when c.act = 'again' then cast(g.new_input as json) end
      from changed c join given g on g.id = c.id
     where b.job_id = c.id
), outputs as (
    delete from {output} o using changed c where o.job_id = c.id and c.act = 'reset'
)
select cast(j.id as text), j.tenant, j.name, j.key, j.queue,
       case when judged.act = 'reset' then 'ready' else j.state end,
       case judged.act when 'kept' then 'kept' when 'replaced' then 'replaced'
                       else 'rerun' end
  from judged join {job} j on j.id = judged.id
"""
