"""What was enqueued: asked by tests, and shown when the answer is not what they want."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import undefer

from sqla_jobs.declare import shapes
from sqla_jobs.exc import PayloadError
from sqla_jobs.models import Job
from sqla_jobs.queue.enqueue import write_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.orm import Session

    from sqla_jobs.declare.job import JobSpec
    from sqla_jobs.declare.payload import Codec

SHOWN: Final = 20
"""The most jobs that a message lists."""
WIDTH: Final = 300
"""The most characters of one input in a message."""
_MISSING: Final = object()


def assert_enqueued(
    session: Session, job: JobSpec[Any, Any], /, **input_subset: object
) -> Job:
    """Return the newest *job* whose input has these fields, in whatever state it is.

    Pending jobs of *session* are written first, so that they are seen; those of other
    sessions are seen once they have committed. For async sessions:
    ``await session.run_sync(assert_enqueued, job, field=value)``.

    :raises AssertionError: there is none; the message shows what there is instead.
    :raises TypeError: the job's input has no field of that name.
    """
    __tracebackhide__ = True
    found = _Search(session, job, input_subset)
    if not found.matching:
        raise AssertionError(found.nothing())
    return found.matching[-1]


def refute_enqueued(
    session: Session, job: JobSpec[Any, Any], /, **input_subset: object
) -> None:
    """Make sure that no *job* has an input with these fields, in whatever state.

    Pending jobs of *session* are written first, as by :func:`assert_enqueued`.

    :raises AssertionError: there is one; the message shows all of them.
    :raises TypeError: the job's input has no field of that name.
    """
    __tracebackhide__ = True
    found = _Search(session, job, input_subset)
    if found.matching:
        raise AssertionError(found.something())


class _Search:
    """One question, and the jobs that are there."""

    def __init__(
        self, session: Session, spec: JobSpec[Any, Any], subset: Mapping[str, object]
    ) -> None:
        if hasattr(session, "sync_session"):
            raise TypeError(
                "an async session cannot be asked directly: "
                "await session.run_sync(assert_enqueued, job, ...)"
            )
        _refuse_unknown(spec, subset)
        self._spec = spec
        self._subset = subset
        self._session = session
        write_jobs(session)
        query = select(Job).where(Job.name == spec.name).order_by(Job.id)
        # The rows as they are now: the session may hold some from before a drain.
        fresh = query.execution_options(populate_existing=True)
        self._same = session.scalars(fresh.options(undefer(Job.input))).all()
        self.matching = [each for each in self._same if not self._differing(each)]

    def nothing(self) -> str:
        """Say that none matches, and what there is."""
        text = f"no job {self._wanted()} is enqueued"
        of_others = Job.name != self._spec.name
        count = select(func.count()).select_from(Job).where(of_others)
        others = self._session.scalars(count).one()
        if self._same:
            more = f"\nand {others} of other names" if others else ""
            listed = self._listed(self._same, len(self._same))
            return f"{text}; of that name are:{listed}{more}"
        if others:
            newest = select(Job).where(of_others).order_by(Job.id.desc()).limit(SHOWN)
            jobs = self._session.scalars(newest).all()
            return f"{text}; these are:{self._listed(jobs[::-1], others)}"
        return (
            f"{text}: nothing is. (Jobs of another session are seen once it has "
            "committed.)"
        )

    def something(self) -> str:
        """Say which match."""
        return (
            f"{len(self.matching)} of {self._wanted()} should not be enqueued:"
            f"{self._listed(self.matching, len(self.matching))}"
        )

    def _wanted(self) -> str:
        given = [f"{n}={self._given(n, v)}" for n, v in self._subset.items()]
        return " with ".join(filter(None, [repr(self._spec.name), ", ".join(given)]))

    def _given(self, name: str, value: object) -> str:
        """Show a wanted *value* of the field *name*, with its sensitive parts hidden."""
        paths = self._spec.input_codec.sensitive_paths
        inside = any(path.startswith((f"{name}.", f"{name}[")) for path in paths)
        if inside and not isinstance(value, dict | list):
            return f"<{type(value).__qualname__}>"
        return _shown(self._masked({name: value})[name])

    def _differing(self, job: Job) -> list[str]:
        """Return the fields in which *job* is not as wanted."""
        if not self._subset:
            return []
        try:
            value = self._spec.input_codec.decode(json.dumps(job.input))
        except PayloadError:
            value = job.input  # An older version's: compare what can be compared.
        return [
            name
            for name, wanted in self._subset.items()
            if _field(value, name) != wanted
        ]

    def _listed(self, jobs: Sequence[Job], count: int) -> str:
        """Show the newest of *jobs*, which are *count* in all, one on each line."""
        lines = [self._line(each) for each in jobs[-SHOWN:]]
        if count > SHOWN:
            lines.insert(0, f"... {count - SHOWN} older ones")
        return "".join(f"\n  {line}" for line in lines)

    def _line(self, job: Job) -> str:
        tenant = f" tenant={job.tenant!r}" if job.tenant else ""
        facts = f"{job.name} {job.state}{tenant} key={job.key!r}"
        if job.name != self._spec.name:
            # Another declaration's: what is sensitive in it is not known here.
            return facts
        line = f"{facts} {_shown(self._masked(job.input))}"
        differing = self._differing(job)
        return f"{line} (differs in {', '.join(differing)})" if differing else line

    def _masked(self, data: Any) -> Any:  # noqa: ANN401 - JSON, or a field's value
        codec: Codec[Any] = self._spec.input_codec
        return codec.mask(data)


def _refuse_unknown(spec: JobSpec[Any, Any], subset: Mapping[str, object]) -> None:
    """Refuse names that are no field: a typo would make every refutation true."""
    if not subset:
        return
    type_ = shapes.plain(spec.input_type)
    has_fields = (
        shapes.is_record(type_)
        or shapes.is_typeddict(type_)
        or shapes.is_pydantic(type_)
    )
    if not has_fields:
        raise TypeError(
            f"the input of {spec.name!r} has no fields: compare the returned job's input"
        )
    known = [each.name for each in shapes.fields_of(type_)]
    unknown = sorted(subset.keys() - set(known))
    if unknown:
        raise TypeError(
            f"the input of {spec.name!r} has no field {', '.join(unknown)}: "
            f"its fields are {', '.join(known)}"
        )


def _field(value: object, name: str) -> object:
    if isinstance(value, dict):
        return value.get(name, _MISSING)
    return getattr(value, name, _MISSING)


def _shown(value: object) -> str:
    text = (
        json.dumps(value, ensure_ascii=False)
        if isinstance(value, dict | list)
        else repr(value)
    )
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}..."
