"""Claiming jobs, and asking when the next one is due."""

from __future__ import annotations

from typing import Final

# - ANY(ARRAY(subselect)) is evaluated once: the limit is exact, and the outer access is
#   the primary key whatever the statistics say. The state is not repeated outside: the
#   rows are locked and were judged by the inner select.
# - One LATERAL branch per (queue, priority) makes the run_at range contiguous: a
#   million future jobs at better priorities cost nothing.
# - States are literals, so that the partial index applies in any plan.
# - The claim needs the worker's own lease: one that lost it takes nothing.
# - Inputs come along up to :inline bytes, so that the answer fits into the socket's
#   buffers: a client that is frozen then cannot keep the transaction open.
# - The row that is claimed is the newest, its body is read as the statement began: a
#   rerun that committed in between would run with the old input, and the new one
#   never. Then the row that we see was ended by somebody else, not by our own lock
#   (xmax); the input stays null, and is fetched by a statement that sees the new one.
CLAIM: Final = """
update {job} j
   set state = 'running', attempt = j.attempt + 1, fence = j.fence + 1,
       worker_id = cast(:worker_id as uuid), attempted_at = {now},
       deadline_at = {now} + interval '1 second'
         * (cast(:seconds as double precision[]))[
             array_position(cast(:limited as text[]), j.name)]
 where j.id = any(array(
         select c.id
           from unnest(cast(:queues as text[]), cast(:rooms as integer[]))
             as q(queue, room)
          cross join lateral (
            select r.id
              from unnest(cast('{{0,1,2,3,4,5,6,7,8,9}}' as smallint[])) as p(priority)
             cross join lateral (
               select id from {job}
                where state in ('ready', 'waiting') and lane is null
                  and queue = q.queue and priority = p.priority
                  and run_at <= {now}
                  and name <> all(cast(:unknown as text[]))
                order by run_at, id
                limit q.room
                  for update skip locked) r
             limit q.room) c))
   and exists (select 1 from {worker}
                where id = cast(:worker_id as uuid) and lease_until > {now})
returning cast(j.id as text), j.fence, j.name, j.tenant, j.queue, j.key, j.priority,
          j.attempt, j.max_attempts, j.interruptions, j.run_at, j.traceparent,
          j.enqueued_by,
          (select case when octet_length(cast(b.input as text)) <= :inline
                       then cast(b.input as text) end
             from {job} seen join {body} b on b.job_id = seen.id
            where seen.id = j.id
              and seen.xmax = cast(pg_current_xact_id() as xid))
"""

INPUTS: Final = """
select cast(job_id as text), cast(input as text) from {body}
 where job_id = any(cast(cast(:ids as text[]) as uuid[]))
"""

# One index probe per (queue, priority).
NEXT_DUE: Final = """
select cast(extract(epoch from min(n.run_at) - {now}) as double precision)
  from unnest(cast(:queues as text[])) as q(queue)
 cross join unnest(cast('{{0,1,2,3,4,5,6,7,8,9}}' as smallint[])) as p(priority)
 cross join lateral (
   select run_at from {job}
    where state in ('ready', 'waiting') and lane is null
      and queue = q.queue and priority = p.priority
      and name <> all(cast(:unknown as text[]))
    order by run_at, id limit 1) n
"""
