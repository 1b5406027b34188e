"""How the queues stand: probes of partial indexes instead of counts of tables."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs
from sqlalchemy import (
    Integer,
    Text,
    column,
    func,
    literal_column,
    select,
    true,
    union_all,
    values,
)

from sqla_jobs import clock
from sqla_jobs.inspect.fleet import rooms
from sqla_jobs.inspect.results import COUNT_LIMIT, QueueStats
from sqla_jobs.models import Job, QueueRow, WorkerRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

    from sqlalchemy import ColumnElement, ScalarSelect
    from sqlalchemy.orm import Session
    from sqlalchemy.sql.selectable import CTE

# Literals: a partial index is only used when the planner can read its predicate.
_WAITING: Final = Job.state.in_(
    [literal_column("'ready'"), literal_column("'waiting'")]
)
_RUNNING: Final = Job.state == literal_column("'running'")
_DEAD: Final = Job.state == literal_column("'dead'")
_LANES: Final = (Job.lane.is_(None), Job.lane.is_not(None))
"""Uncapped and capped jobs: each part has an index of its own."""
_PRIORITIES: Final = range(10)


def queues(session: Session, *, known: Iterable[str] = ()) -> list[QueueStats]:
    """Return how each queue stands, by name.

    Shown are the queues that hold jobs, were paused once, or are served by a living
    worker, and those in *known* (zeros when they are empty). Emits a fixed number of
    SELECTs; each count and each probe goes through an index and is bounded.
    """
    served = _served(session)
    paused = _paused(session)
    names = {*known, *served, *paused, *_in_use(session)}
    if not names:
        return []
    waiting = _waiting(session, names)
    held = _held(session, names)
    return [
        QueueStats(
            name=name,
            depth=min(waiting[name].depth, COUNT_LIMIT),
            ready=min(waiting[name].ready, COUNT_LIMIT),
            running=held[name].running,
            dead=held[name].dead,
            oldest_ready_age=waiting[name].oldest,
            paused_at=paused.get(name),
            workers=served.get(name, 0),
        )
        for name in sorted(names)
    ]


def _served(session: Session) -> dict[str, int]:
    """Return how many living workers serve each queue."""
    served: dict[str, int] = {}
    alive = select(WorkerRow.queues).where(WorkerRow.lease_until > clock.now())
    for stored in session.scalars(alive):
        for name in rooms(stored):
            served[name] = served.get(name, 0) + 1
    return served


def _paused(session: Session) -> dict[str, datetime | None]:
    rows = session.execute(select(QueueRow.name, QueueRow.paused_at))
    return {row.name: row.paused_at for row in rows}


def _in_use(session: Session) -> set[str]:
    """Return the queues that hold jobs which wait, run or are dead."""
    walks = [select(_walk(lane).c.queue) for lane in _LANES]
    # Few run; of the dead only the first are asked: a queue that holds nothing but
    # dead letters, all of them behind ten thousand others, may be missing.
    held = [
        select(
            select(Job.queue).where(state).limit(COUNT_LIMIT).subquery().c.queue
        ).distinct()
        for state in (_RUNNING, _DEAD)
    ]
    found = session.scalars(union_all(*walks, *held))
    return {name for name in found if name is not None}


def _walk(lane: ColumnElement[bool]) -> CTE:
    """Return the distinct queues of waiting jobs, one index descent for each."""
    first = (
        select(func.min(Job.queue).label("queue"))
        .where(_WAITING, lane)
        .cte(recursive=True)
    )
    following = (
        select(func.min(Job.queue))
        .where(_WAITING, lane, Job.queue > first.c.queue)
        .correlate(first)
        .scalar_subquery()
    )
    return first.union_all(select(following).where(first.c.queue.is_not(None)))


class _Held(NamedTuple):
    running: int
    dead: int


def _held(session: Session, names: Collection[str]) -> dict[str, _Held]:
    """Return what each queue holds beside what waits."""
    # Counted for each queue by itself: one bound for all would show a zero for a
    # queue whose dead letters come behind ten thousand of another.
    known = _named(names)
    mine = Job.queue == known.c.name
    rows = session.execute(
        select(
            known.c.name,
            _count(mine, _RUNNING, of=(known,)),
            _count(mine, _DEAD, of=(known,)),
        )
    )
    return {name: _Held(running, dead) for name, running, dead in rows}


@attrs.define
class _Waiting:
    depth: int = 0
    ready: int = 0
    oldest: timedelta | None = None

    def add(self, depth: int, ready: int, age: timedelta | None) -> None:
        """Add one priority and lane; *age* of its first job, negative when not due."""
        self.depth += depth
        self.ready += ready
        if age is not None and age >= timedelta(0):
            self.oldest = max(self.oldest or age, age)


def _waiting(session: Session, names: Collection[str]) -> dict[str, _Waiting]:
    """Return what waits in each queue."""
    # One probe per priority, so that the range of run_at is contiguous in the index:
    # a million jobs of a later time cost nothing.
    known, levels = _named(names), _levels()
    found = {name: _Waiting() for name in names}
    for lane in _LANES:
        here = (
            Job.queue == known.c.name,
            Job.priority == levels.c.level,
            _WAITING,
            lane,
        )
        due = Job.run_at <= clock.now()
        first = select(func.min(Job.run_at)).where(*here).correlate(known, levels)
        rows = session.execute(
            select(
                known.c.name,
                _count(*here, of=(known, levels)),
                _count(*here, due, of=(known, levels)),
                first.scalar_subquery(),
                clock.now(),
            ).join_from(known, levels, true())
        )
        for name, depth, ready, run_at, now in rows:
            age = None if run_at is None else now - run_at
            found[name].add(depth, ready, age)
    return found


def _named(names: Collection[str]) -> CTE:
    rows = [(name,) for name in sorted(names)]
    return values(column("name", Text), name="known").data(rows).cte("known")


def _levels() -> CTE:
    rows = [(level,) for level in _PRIORITIES]
    return values(column("level", Integer), name="levels").data(rows).cte("levels")


def _count(*criteria: ColumnElement[bool], of: Iterable[CTE]) -> ScalarSelect[int]:
    """Return the bounded count of jobs that match, for the current row of *of*."""
    one = literal_column("1", Integer)
    matching = select(one).select_from(Job).where(*criteria)
    bounded = matching.limit(COUNT_LIMIT).correlate(*of).subquery()
    return select(func.count()).select_from(bounded).correlate(*of).scalar_subquery()
