"""What happened, as the database tells it."""

from collections import Counter
from typing import Any
from uuid import UUID

import attrs
from sqlalchemy import Engine, distinct, func, select
from sqlalchemy.orm import Session

from examples.weather.jobs import summarise_day
from examples.weather.models import DaySummary, Reading, Station
from sqla_jobs.models import Attempt, Job


@attrs.frozen
class Progress:
    """How far it is: cheap enough to ask several times a second."""

    days: int
    states: dict[str, int]
    attempts: dict[str, int]
    """How many jobs have an attempt that ended so: ``failed``, ``lost``, …"""

    @property
    def settled(self) -> int:
        """Jobs that will not run again by themselves."""
        return sum(
            self.states.get(state, 0) for state in ("succeeded", "dead", "cancelled")
        )

    @property
    def open(self) -> int:
        """Jobs that are still to run, or running."""
        return sum(self.states.values()) - self.settled

    @classmethod
    def read(cls, engine: Engine) -> "Progress":
        """Ask the database."""
        with Session(engine) as session:
            # Each day's transaction enqueued one such job.
            days = select(func.count()).where(Job.name == summarise_day.name)
            states = select(Job.state, func.count()).group_by(Job.state)
            outcomes = select(
                Attempt.outcome, func.count(distinct(Attempt.job_id))
            ).group_by(Attempt.outcome)
            return cls(
                session.scalars(days).one(),
                dict(session.execute(states).all()),
                dict(session.execute(outcomes).all()),
            )


@attrs.frozen
class DeadLetter:
    """A job that will not run again, and why."""

    job: str
    key: str
    attempts: int
    error: str
    """The error's class and what it said, without its traceback."""


@attrs.frozen
class Facts:
    """The end of the story; every number is counted in the database."""

    stations: int
    days_imported: int
    readings: int
    summaries: int
    jobs: int
    jobs_succeeded: int
    jobs_retried: int
    jobs_rescued: int
    jobs_dead: int
    seconds: float
    """From the first enqueue to the last settle, the wait for a dead lease included."""
    jobs_per_second: float
    """Over all of that time."""
    jobs_per_second_peak: int
    """In the busiest second."""
    dead_letters: list[DeadLetter]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return attrs.asdict(self)


def read_facts(engine: Engine) -> Facts:
    """Count everything."""
    progress = Progress.read(engine)
    jobs = sum(progress.states.values())
    with Session(engine) as session:
        day = func.date(Reading.taken_at)
        days = select(Reading.station_id, day).distinct().subquery()
        first = session.scalars(select(func.min(Job.created_at))).one()
        ends = [end for end in session.scalars(select(Job.finished_at)) if end]
        seconds = (max(ends) - first).total_seconds()
        per_second = Counter(end.replace(microsecond=0) for end in ends)
        return Facts(
            stations=session.scalars(select(func.count(Station.id))).one(),
            days_imported=session.scalars(select(func.count()).select_from(days)).one(),
            readings=session.scalars(select(func.count(Reading.taken_at))).one(),
            summaries=session.scalars(select(func.count(DaySummary.id))).one(),
            jobs=jobs,
            jobs_succeeded=progress.states.get("succeeded", 0),
            jobs_retried=progress.attempts.get("failed", 0),
            jobs_rescued=progress.attempts.get("lost", 0),
            jobs_dead=progress.states.get("dead", 0),
            seconds=round(seconds, 2),
            jobs_per_second=round(progress.settled / seconds, 1),
            jobs_per_second_peak=max(per_second.values()),
            dead_letters=_dead_letters(session),
        )


def lost_jobs(engine: Engine) -> set[UUID]:
    """The jobs of which an attempt was lost with its worker."""
    with Session(engine) as session:
        return set(
            session.scalars(select(Attempt.job_id).where(Attempt.outcome == "lost"))
        )


def _dead_letters(session: Session) -> list[DeadLetter]:
    dead = session.scalars(select(Job).where(Job.state == "dead").order_by(Job.key))
    return [
        DeadLetter(job.name, job.key, job.attempt, _reason(job.attempts[-1]))
        for job in dead
    ]


def _reason(attempt: Attempt) -> str:
    last = (attempt.error or "").strip().rpartition("\n")[2]
    return f"{attempt.error_type}: {last.partition(': ')[2] or last}"
