"""What the end of an attempt does to its row: one text for every database.

Read from the row as it is now, on its newest version: a cancel request turns "run again"
into cancelled; used-up attempts turn it into dead; a rerun that was asked for meanwhile
turns every end into ready, as a new life: attempt 0 and a new fence; while the job only
runs again, the rerun waits, else its input would never run. Only the cancel request and
the rerun can change under a held fence; everything else may come from the statement's
snapshot.

In these texts ``j`` is the job and ``u`` the outcome: ``outcome``, ``delay``.
"""

from __future__ import annotations

from typing import Final

INTERRUPTIONS_ALLOWED: Final = 3
"""Uncounted interruptions of one job; further ones count as attempts."""

_UNCOUNTED: Final = f"""
        (u.outcome in ('snooze', 'released')
         or (u.outcome = 'interrupted'
             and j.interruptions < {INTERRUPTIONS_ALLOWED}))"""
_SETTLED: Final = f"""
        case when u.outcome in ('succeeded', 'cancelled', 'dead') then u.outcome
             when j.cancel_requested_at is not null then 'cancelled'
             when j.attempt >= j.max_attempts and not {_UNCOUNTED} then 'dead'
             else 'ready' end"""
_RESCUED: Final = """
        case when j.cancel_requested_at is not null then 'cancelled'
             when j.attempt >= j.max_attempts then 'dead'
             else 'ready' end"""


def settle_set(later: str) -> str:
    """Return the SET clause of a settle; *later* is the present plus ``u.delay``."""
    return _end(
        ended=_SETTLED,
        new_fence="j.fence + case when __again__ then 1 else 0 end",
        attempt=f"case when {_UNCOUNTED} then j.attempt - 1 else j.attempt end",
        interruptions=f"""j.interruptions
                + case when u.outcome = 'interrupted' and {_UNCOUNTED} then 1
                       else 0 end""",
        run_at=f"""case when u.outcome = 'released' and u.delay = 0 then j.run_at
                     else {later} end""",
    )


def rescue_set(later: str) -> str:
    """Return the SET clause of a rescue; *later* is when a freed job runs again."""
    return _end(
        ended=_RESCUED,
        new_fence="j.fence + 1",
        attempt="j.attempt",
        interruptions="j.interruptions",
        run_at=later,
    )


def _end(
    *, ended: str, new_fence: str, attempt: str, interruptions: str, run_at: str
) -> str:
    return f"""
       state = case when __again__ then 'ready' else __ended__ end,
       fence = {new_fence},
       attempt = case when __again__ then 0 else {attempt} end,
       interruptions = case when __again__ then 0 else {interruptions} end,
       run_at = case when __again__ then coalesce(j.rerun_run_at, {{now}})
                     when __ended__ <> 'ready' then j.run_at
                     else {run_at} end,
       attempted_at = case when __again__ then null else j.attempted_at end,
       cancel_requested_at = case when __again__ then null
                                  else j.cancel_requested_at end,
       cancel_reason = case when __again__ then null else j.cancel_reason end,
       rerun = j.rerun and __ended__ = 'ready',
       rerun_run_at = case when __ended__ = 'ready' then j.rerun_run_at end,
       worker_id = null, deadline_at = null,
       finished_at = case when __again__ or __ended__ = 'ready' then null
                          else {{now}} end
""".replace("__again__", f"(j.rerun and {ended} <> 'ready')").replace(
        "__ended__", ended
    )
