"""Ending attempts: settle, the fence of a commit, heartbeat, rescue in two looks."""

from __future__ import annotations

from typing import Final

from sqla_jobs.dialects.transitions import rescue_set, settle_set

LATER: Final = "strftime('%Y-%m-%d %H:%M:%f000', {now}, u.delay || ' seconds')"

SETTLE: Final = f"""
update {{job}} as j
   set {settle_set(LATER)}
  from (select value ->> 'id' as id, value ->> 'fence' as held,
               value ->> 'outcome' as outcome, value ->> 'delay' as delay
          from json_each(:rows)) as u
 where j.id = u.id and j.fence = u.held and j.worker_id = :worker_id
returning id, fence
"""

OUTPUTS: Final = """
insert into {output} (job_id, fence, output)
select value ->> 'id', value ->> 'fence', value ->> 'output'
  from json_each(:rows) where true
on conflict (job_id) do update set fence = excluded.fence, output = excluded.output
"""

NEW_BODIES: Final = """
update {body}
   set input = coalesce(rerun_input, input), rerun_input = null
 where job_id in (select value from json_each(:ids))
"""

# Taken before the settle: a new life of the job forgets when the old one began.
STARTED: Final = """
select id, attempted_at from {job} where id in (select value from json_each(:ids))
"""

ATTEMPTS: Final = """
insert into {attempt} (
    job_id, fence, number, worker_id, worker, started_at, ended_at, outcome,
    error_type, error)
select value ->> 'id', value ->> 'fence', value ->> 'number', value ->> 'worker_id',
       value ->> 'worker', value ->> 'started_at', {now}, value ->> 'outcome',
       value ->> 'error_type', value ->> 'error'
  from json_each(:rows) where true
on conflict (job_id, fence) do nothing
"""

HOLD: Final = """
update {job} set fence = fence
 where id = :job_id and fence = :fence and worker_id = :worker_id
"""

# A lease that ran out can still be renewed, until a rescuer may take its jobs: the beat
# may have stood behind somebody's long transaction, in which nobody else could write
# either. The same condition as in PICK, the other way round: one of the two is true.
BEAT: Final = """
update {worker}
   set lease_until = strftime('%Y-%m-%d %H:%M:%f000', {now}, :ttl || ' seconds'),
       suspect_at = null, listening = :listening, stuck = :stuck
 where id = :worker_id
   and (suspect_at is null
        or suspect_at > strftime('%Y-%m-%d %H:%M:%f000', {now},
                                 -:suspicion || ' seconds'))
"""

RUNNING: Final = """
select u.id, j.cancel_requested_at is not null as cancelled, j.cancel_reason,
       j.id is not null and j.fence = u.fence
         and coalesce(j.worker_id = :worker_id, false) as held
  from (select value ->> 0 as id, value ->> 1 as fence
          from json_each(:running)) as u
  left join {job} j on j.id = u.id
"""

NEWS: Final = """
select (select json_group_array(name) from {queue} where paused_at is not null),
       (select schema_version from {meta} where id = 1),
       (select min_code_version from {meta} where id = 1)
"""

# Rescue takes two looks. A worker's heartbeat may stand behind somebody's long write
# transaction; a rescuer that stood in the same line must not get in first and find the
# lease over. The first look only marks the worker as suspect; the jobs are taken by a
# later one, after the heartbeat has had its turn. A look that had to wait itself takes
# nothing at all: whoever else waited (a beat, a settle) comes first.
SUSPECT: Final = """
update {worker} set suspect_at = {now}
 where suspect_at is null
   and lease_until <= strftime('%Y-%m-%d %H:%M:%f000', {now}, -:grace || ' seconds')
"""

_GONE: Final = """(w.id is null
        or w.suspect_at <= strftime('%Y-%m-%d %H:%M:%f000', {now},
                                    -:suspicion || ' seconds'))"""
_LATE: Final = """r.deadline_at < strftime('%Y-%m-%d %H:%M:%f000', {now},
                                            -:grace || ' seconds')"""
# An owner whose lease is over may stand in line with the attempt's outcome in hand.
_BEATS: Final = """w.lease_until > strftime('%Y-%m-%d %H:%M:%f000', {now},
                                             -:grace || ' seconds')"""

PICK: Final = f"""
select r.id, r.fence, r.worker_id, r.attempt, r.attempted_at, r.name, r.queue,
       w.host || ':' || w.pid,
       case when {_GONE} then 'lost' when {_LATE} then 'timed_out'
            else 'cancelled' end
  from {{job}} r left join {{worker}} w on w.id = r.worker_id
 where r.state = 'running'
   and ({_GONE}
        or {_BEATS}
       and ({_LATE}
            or r.cancel_requested_at < strftime('%Y-%m-%d %H:%M:%f000', {{now}},
                                                -:grace || ' seconds')))
 limit :limit
"""

FREE: Final = f"""
update {{job}} as j
   set {rescue_set("strftime('%Y-%m-%d %H:%M:%f000', {now}, :delay || ' seconds')")}
 where j.id in (select value from json_each(:ids)) and j.state = 'running'
returning id, state, attempt = 0 as again
"""
