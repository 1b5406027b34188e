"""Ending attempts: settle, the fence of a commit, heartbeat, rescue."""

from __future__ import annotations

from typing import Final

from sqla_jobs.dialects.transitions import rescue_set, settle_set

# `any(array(...))` forces the primary key: joined to unnest alone, stale statistics
# turn it into a scan of the whole table (20 µs -> 4 ms a job). SKIP LOCKED: one open
# transaction that cancels one of these jobs would block the whole batch.
_FREE_ROWS: Final = """array(
         select id from {job}
          where id = any(array(select unnest(cast(cast(:ids as text[]) as uuid[]))))
          order by id for update skip locked)"""
_ALL_ROWS: Final = "array(select unnest(cast(cast(:ids as text[]) as uuid[])))"

# From the moment a transaction holds its attempt's job row it may idle for this long: a
# process that freezes before its COMMIT would hide the job from claim and rescue for
# ever. set_config(..., true) ends with the transaction and needs no round trip.
_IDLE: Final = "set_config('idle_in_transaction_session_timeout', '15s', true)"

_SET: Final = settle_set("{now} + u.delay * interval '1 second'")

_SETTLE: Final = f"""
with given as (
    select *
      from unnest(
             cast(cast(:ids as text[]) as uuid[]), cast(:fences as bigint[]),
             cast(:numbers as integer[]), cast(:outcomes as text[]),
             cast(cast(:delays as text[]) as double precision[]),
             cast(:outputs as text[]), cast(:error_types as text[]),
             cast(:errors as text[]), cast(:timed_out as boolean[]))
        as u(id, held, number, outcome, delay, output, error_type, error, timed_out)
), done as (
    update {{job}} j
       set {_SET}
      from given u
     where j.id = any({{rows}})
       and j.id = u.id and j.fence = u.held
       and coalesce(j.worker_id = cast(cast(:worker_id as text) as uuid), false)
    returning u.*, j.fence > u.held as again
), outputs as (
    insert into {{output}} (job_id, fence, output)
    select id, held, cast(output as json) from done
     where output is not null and outcome = 'succeeded' and not again
    on conflict (job_id) do update
       set fence = excluded.fence, output = excluded.output
), bodies as (
    update {{body}} b
       set input = coalesce(b.rerun_input, b.input), rerun_input = null
      from done where b.job_id = done.id and done.again
), attempts as (
    insert into {{attempt}} (
        job_id, fence, number, worker_id, worker, started_at, ended_at, outcome,
        error_type, error)
    select d.id, d.held, d.number, cast(cast(:worker_id as text) as uuid), :worker,
           (select before.attempted_at from {{job}} before where before.id = d.id),
           {{now}},
           case when d.timed_out then 'timed_out'
                when d.outcome = 'retry' then 'failed'
                when d.outcome = 'snooze' then 'snoozed'
                else d.outcome end,
           d.error_type, d.error
      from done d
     where d.outcome <> 'released' and (d.outcome <> 'succeeded' or d.again)
    on conflict (job_id, fence) do nothing
)
select cast(id as text){{also}} from done
"""

SETTLE: Final = _SETTLE.replace("{rows}", _FREE_ROWS).replace("{also}", "")
SETTLE_ALONE: Final = _SETTLE.replace("{rows}", _ALL_ROWS).replace(
    "{also}", f", {_IDLE}"
)

# NO KEY UPDATE is what an UPDATE takes; rescue and settle step over it.
HOLD: Final = f"""
select {_IDLE}
  from {{job}}
 where id = cast(cast(:job_id as text) as uuid) and fence = :fence
   and worker_id = cast(cast(:worker_id as text) as uuid)
   for no key update
"""

# One round trip: the running pairs go out; what happened to them comes back. The lease
# is renewed only while it is valid: a worker that was declared dead stays dead.
RENEW: Final = """
with beat as (
    update {worker}
       set lease_until = {now} + :ttl * interval '1 second',
           backends = cast(:backends as json),
           listening = cast(:listening as boolean), stuck = :stuck
     where id = cast(:worker_id as uuid) and lease_until > {now}
    returning id
), mine as (
    select u.id, j.cancel_requested_at, j.cancel_reason,
           coalesce(j.fence = u.fence and j.worker_id = cast(:worker_id as uuid), false)
             as held
      from unnest(cast(cast(:ids as text[]) as uuid[]), cast(:fences as bigint[]))
        as u(id, fence)
      left join {job} j on j.id = u.id
)
select (select count(*) from beat),
       array(select cast(id as text) from mine where not held),
       array(select cast(id as text) from mine
              where held and cancel_requested_at is not null order by id),
       array(select coalesce(cancel_reason, '') from mine
              where held and cancel_requested_at is not null order by id),
       array(select name from {queue} where paused_at is not null),
       (select schema_version from {meta} where id = 1),
       (select min_code_version from {meta} where id = 1),
       (select pg_notify(:channel, :payload)
         where cast(:channel as text) is not null)
"""

# The lock and the judgement happen inside the array subselect, on the newest version of
# each row: a settle that wins the race is never undone. Dead workers' jobs are found
# through their owner, so that long healthy jobs in front hide nobody.
_FREE: Final = rescue_set("{now} + :delay * interval '1 second'")
RESCUE: Final = """
with dead_owner as (
    select distinct o.worker_id
      from {job} o
     where o.state = 'running'
       and not exists (select 1 from {worker} w
                        where w.id = o.worker_id
                          and w.lease_until > {now} - :grace * interval '1 second')
), picked as materialized (
    select r.id, r.fence as held, r.worker_id as owner, r.attempt as number,
           r.attempted_at,
           case when r.worker_id in (select worker_id from dead_owner) then 'lost'
                when r.deadline_at < {now} - :grace * interval '1 second'
                  then 'timed_out'
                else 'cancelled' end as why
      from {job} r
     where r.id = any(array(
             select s.id from {job} s
              where s.state = 'running'
                and (s.worker_id in (select worker_id from dead_owner)
                     or s.deadline_at < {now} - :grace * interval '1 second'
                     or s.cancel_requested_at < {now} - :grace * interval '1 second')
              limit :limit
                for update skip locked))
), freed as (
    update {job} j
       set __free__
      from picked p
     where j.id = p.id and j.fence = p.held and j.state = 'running'
    returning j.id, j.name, j.queue, j.state, j.attempt = 0 as again, p.number, p.held,
              p.owner, p.attempted_at, p.why
), bodies as (
    update {body} b
       set input = coalesce(b.rerun_input, b.input), rerun_input = null
      from freed where b.job_id = freed.id and freed.again
), attempts as (
    insert into {attempt} (
        job_id, fence, number, worker_id, worker, started_at, ended_at, outcome,
        error_type, error)
    select f.id, f.held, f.number, f.owner,
           (select w.host || ':' || w.pid from {worker} w where w.id = f.owner),
           f.attempted_at, {now}, f.why,
           case f.why when 'lost' then 'WorkerLost'
                      when 'timed_out' then 'JobTimeoutError'
                      else 'JobAbortedError' end,
           case f.why
             when 'lost' then 'worker lost: its lease ran out while the attempt ran'
             when 'timed_out'
               then 'the deadline passed and the worker did not end the attempt'
             else 'cancelled, and the attempt did not stop' end
      from freed f
    on conflict (job_id, fence) do nothing
)
select cast(id as text), name, queue, state, number, cast(owner as text),
       why = 'timed_out'
  from freed
""".replace("__free__", _FREE)

# Same role, same database, a session that began before the lease ended and stands idle
# inside a transaction: a process id can have been given to somebody else since.
END_BACKENDS: Final = """
select count(*) filter (where pg_terminate_backend(a.pid))
  from {worker} w
 cross join lateral json_array_elements_text(coalesce(w.backends, '[]')) as b(pid)
  join pg_stat_activity a on a.pid = cast(b.pid as integer)
 where w.id = any(cast(cast(:worker_ids as text[]) as uuid[]))
   and w.lease_until < {now}
   and a.datname = current_database() and a.usename = current_user
   and a.backend_start < w.lease_until and a.xact_start < w.lease_until
   and a.pid <> pg_backend_pid()
"""
