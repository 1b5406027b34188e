"""The errors: each carries facts, builds its own sentence and says what to do.

Two branches: :exc:`.DeclarationError` (always the same, raised where the mistake was
written, usually at import) and everything else, which happens at run time. Each class
has a ``code``; ``docs/errors.md`` has a section for every code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta
    from uuid import UUID


class JobsError(Exception):
    """Base of every error of this library; ``code`` names its documentation section."""

    code: ClassVar[str] = "base"

    def __str__(self) -> str:
        """Return the sentence, followed by the code to look up."""
        return f"{super().__str__()} [sqla_jobs:{self.code}]"

    def __reduce__(self) -> tuple[object, ...]:
        # Exception pickles as cls(*args), but our constructors take facts: rebuild
        # without calling them.
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(
    cls: type[JobsError], args: tuple[object, ...], facts: dict[str, object]
) -> JobsError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(facts)
    return error


# --- declarations: the program is wrong, and always in the same way ------------------


class DeclarationError(JobsError):
    """A declaration is wrong; raised by the call that declares it."""

    code = "decl"


class DurationError(DeclarationError):
    """A duration is zero, negative, not finite, out of range, or not a duration."""

    code = "duration"

    def __init__(self, field: str, value: object, reason: str) -> None:
        """Tell that *value*, given for *field*, was refused for *reason*."""
        self.field, self.value, self.reason = field, value, reason
        super().__init__(
            f"{field}={value!r} is {reason}: give a timedelta or a string such as "
            f"'250ms', '30s', '10m', '2h' or '3d'."
        )


class IdempotencyKeyRequiredError(DeclarationError):
    """A job was declared without ``idempotency_key``."""

    code = "key-required"

    def __init__(self, job: str, detail: str = "is missing") -> None:
        """Tell that the idempotency key of *job* is missing or unusable."""
        self.job, self.detail = job, detail
        super().__init__(
            f"Job {job!r}: idempotency_key {detail}: give a function of the input that "
            f"returns a non-empty string naming this piece of work, for example "
            f"idempotency_key=lambda i: f'charge:{{i.order_id}}'."
        )


class TenantRequiredError(DeclarationError):
    """A job was declared without ``tenant``."""

    code = "tenant-required"

    def __init__(self, job: str, detail: str = "is missing") -> None:
        """Tell that the tenant of *job* is missing or unusable."""
        self.job, self.detail = job, detail
        super().__init__(
            f"Job {job!r}: tenant {detail}: give a function of the input that returns "
            f"a str, int or UUID, or say tenant=NO_TENANT."
        )


class JobNameTakenError(DeclarationError):
    """Two declarations share one name."""

    code = "name-taken"

    def __init__(self, job: str, first: str, second: str) -> None:
        """Tell that *job*, declared at *first*, was declared again at *second*."""
        self.job, self.first, self.second = job, first, second
        super().__init__(
            f"Job {job!r} is declared at {first} and again at {second}: names are how "
            f"stored rows find their code, so give each job a name of its own."
        )


class InvalidOptionError(DeclarationError):
    """An option of a declaration has a value that cannot work."""

    code = "option"

    def __init__(self, option: str, reason: str, job: str | None = None) -> None:
        """Tell why the value of *option* (of *job*, when it is one's) was refused."""
        self.option, self.reason, self.job = option, reason, job
        where = f"Job {job!r}: " if job is not None else ""
        super().__init__(f"{where}{option} {reason}.")


class UnsupportedTypeError(DeclarationError):
    """An input or output type holds a type that JSON cannot carry exactly."""

    code = "unsupported-type"

    def __init__(self, path: str, type_: object, reason: str) -> None:
        """Tell that *type_*, found at *path*, cannot be stored for *reason*."""
        self.path, self.type, self.reason = path, _type_name(type_), reason
        super().__init__(
            f"{path}: {self.type} {reason}. Use attrs classes, dataclasses, "
            f"TypedDicts or pydantic models of plain types."
        )


def _type_name(type_: object) -> str:
    return type_.__qualname__ if isinstance(type_, type) else str(type_)


class HandlerError(DeclarationError):
    """A function cannot be the handler of a job."""

    code = "handler"

    def __init__(self, job: str, handler: str, reason: str) -> None:
        """Tell why *handler* cannot be the handler of *job*."""
        self.job, self.handler, self.reason = job, handler, reason
        super().__init__(f"Job {job!r}: handler {handler} {reason}.")


class JobNotDeclaredError(JobsError, LookupError):
    """A name or handle does not belong to the registry that was asked."""

    code = "not-declared"

    def __init__(self, job: str, reason: str = "is not declared here") -> None:
        """Tell that *job* cannot be used for *reason*."""
        self.job, self.reason = job, reason
        super().__init__(
            f"Job {job!r} {reason}: import the module that declares it before the "
            f"registry is used, and include() registries of other modules."
        )


# --- inputs and outputs --------------------------------------------------------------


class PayloadError(JobsError, ValueError):
    """An input or output cannot be stored, or a stored one cannot be read."""

    code = "payload"

    def __init__(self, path: str, reason: str) -> None:
        """Tell that the value at *path* was refused for *reason*."""
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


# --- enqueue -------------------------------------------------------------------------


class EnqueueError(JobsError):
    """An enqueue was refused; nothing of it was written."""

    code = "enqueue"


class NotWrittenError(EnqueueError):
    """A handle was asked for what only the database knows, before the write."""

    code = "not-written"

    def __init__(self, job: str, asked: str) -> None:
        """Tell that *asked* of the pending *job* is unknown before the write."""
        self.job, self.asked = job, asked
        super().__init__(
            f"Job {job!r} is not written yet, so its {asked} is unknown: read it after "
            f"the commit, or call session.write_jobs() first."
        )


class DuplicateJobError(EnqueueError):
    """``on_duplicate='error'`` met a job with the same identity."""

    code = "duplicate"

    def __init__(self, job: str, key: str, job_id: UUID, state: str) -> None:
        """Tell which job (*job_id*, now *state*) holds *key* already."""
        self.job, self.key, self.job_id, self.state = job, key, job_id, state
        super().__init__(
            f"Job {job!r} with key {key!r} exists already: {job_id} is {state}. Use "
            f"on_duplicate='keep', 'replace' or 'rerun' if that is no mistake."
        )


class JobIdTakenError(EnqueueError):
    """A new job's id belongs to another job: the insert would have been lost."""

    code = "id-taken"

    def __init__(self, job_id: UUID, job: str, key: str) -> None:
        """Tell that *job_id*, chosen for *job* and *key*, is another job's id."""
        self.job_id, self.job, self.key = job_id, job, key
        super().__init__(
            f"The id {job_id} chosen for job {job!r} with key {key!r} belongs to "
            f"another job: ids must not be reused or copied."
        )


class EnqueueConflictError(EnqueueError):
    """A duplicate vanished each time it was looked at; retry the transaction."""

    code = "conflict"

    def __init__(self, job: str, key: str, tries: int) -> None:
        """Tell that *job* with *key* could not be pinned down in *tries* tries."""
        self.job, self.key, self.tries = job, key, tries
        super().__init__(
            f"Job {job!r} with key {key!r} was neither inserted nor found in {tries} "
            f"tries: retry the transaction."
        )


class EnqueueArgumentError(EnqueueError, ValueError):
    """An argument of ``enqueue`` is not valid; raised by the call."""

    code = "enqueue-argument"

    def __init__(self, argument: str, value: object, reason: str) -> None:
        """Tell that *argument* was given as *value*, and the *reason* it is refused."""
        self.argument, self.value, self.reason = argument, repr(value)[:200], reason
        super().__init__(f"{argument}={self.value} {reason}.")


class EnqueueRoutingError(EnqueueError):
    """The session would write the job where it cannot or must not be."""

    code = "routing"

    def __init__(self, reason: str, remedy: str) -> None:
        """Tell the *reason* and the *remedy*."""
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}: {remedy}.")


class DatabaseUnsupportedError(JobsError):
    """The database is not one that the queue can live in."""

    code = "database-unsupported"

    def __init__(self, dialect: str, reason: str) -> None:
        """Tell why *dialect* cannot hold the queue."""
        self.dialect, self.reason = dialect, reason
        super().__init__(f"{dialect} cannot hold the queue: {reason}.")


class EngineUnsuitableError(JobsError):
    """The application's engine is set up so that its transactions cannot carry jobs."""

    code = "engine-unsuitable"

    def __init__(self, reason: str, remedy: str) -> None:
        """Tell the *reason* and the *remedy*."""
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}: {remedy}.")


# --- steering ------------------------------------------------------------------------


class JobNotFoundError(JobsError, LookupError):
    """No such job; it never existed, or retention removed it."""

    code = "job-not-found"

    def __init__(self, job_id: UUID | str) -> None:
        """Tell that there is no job *job_id*."""
        self.job_id = job_id
        super().__init__(
            f"There is no job {job_id}: it never existed, its transaction rolled back, "
            f"or retention has removed it."
        )


class JobNotCancellableError(JobsError):
    """The cancel came too late."""

    code = "not-cancellable"

    def __init__(self, job_id: UUID, state: str) -> None:
        """Tell that *job_id* is *state* already."""
        self.job_id, self.state = job_id, state
        super().__init__(
            f"Job {job_id} is {state} already: only a ready, waiting or running job "
            f"can be cancelled."
        )


class JobNotRetryableError(JobsError):
    """The job is not in a state from which an operator can retry it."""

    code = "not-retryable"

    def __init__(self, job_id: UUID, state: str) -> None:
        """Tell that *job_id* is *state*."""
        self.job_id, self.state = job_id, state
        super().__init__(
            f"Job {job_id} is {state}: only a dead, cancelled or succeeded job can be "
            f"retried; a ready or running one is on its way already."
        )


class JobNotDiscardableError(JobsError):
    """The job is not in a state from which an operator can discard it."""

    code = "not-discardable"

    def __init__(self, job_id: UUID, state: str) -> None:
        """Tell that *job_id* is *state*."""
        self.job_id, self.state = job_id, state
        super().__init__(
            f"Job {job_id} is {state}: only a finished job can be discarded; cancel it "
            f"first."
        )


class RowUnreadableError(JobsError):
    """A job's row, or one of its attempts', holds what cannot be decoded."""

    code = "row-unreadable"

    def __init__(self, job_id: UUID, reason: str) -> None:
        """Tell the *reason* why *job_id* cannot be shown."""
        self.job_id, self.reason = job_id, reason
        remedy = "repair its rows, or discard it"
        super().__init__(f"Job {job_id} cannot be read ({reason}): {remedy}.")


# --- attempts ------------------------------------------------------------------------


class AttemptError(JobsError):
    """Something ended or fenced out an attempt."""

    code = "attempt"


class LeaseLostError(AttemptError):
    """The attempt no longer owns its job: what it writes is refused."""

    code = "lease-lost"

    def __init__(self, job_id: UUID | str, fence: int) -> None:
        """Tell that the attempt with *fence* lost *job_id*."""
        self.job_id, self.fence = job_id, fence
        super().__init__(
            f"This attempt (fence {fence}) no longer owns job {job_id}: its lease ran "
            f"out and the job was given to another, or an operator ended it. The "
            f"transaction was rolled back; do not write anything more for this job."
        )


class JobTimeoutError(AttemptError, TimeoutError):
    """The attempt ran past its ``timeout``."""

    code = "timeout"

    def __init__(self, job: str, limit: timedelta) -> None:
        """Tell that an attempt of *job* ran longer than *limit*."""
        self.job, self.limit = job, limit
        super().__init__(
            f"An attempt of job {job!r} ran longer than its timeout of "
            f"{limit.total_seconds():g} s: raise timeout=, or do less in one job."
        )


class JobAbortedError(AttemptError):
    """The attempt was asked to end: its job was cancelled."""

    code = "aborted"

    def __init__(self, job_id: UUID | str, reason: str | None) -> None:
        """Tell why *job_id* was asked to stop."""
        self.job_id, self.reason = job_id, reason
        because = f" ({reason})" if reason else ""
        super().__init__(
            f"Job {job_id} was cancelled{because}: clean up and let this error through."
        )


class ResourceMissingError(AttemptError, LookupError):
    """``ctx.resource(T)`` asked for what the lifespan did not give."""

    code = "resource-missing"

    def __init__(self, wanted: type, given: Iterable[type]) -> None:
        """Tell that *wanted* is not among what was *given*."""
        self.wanted, self.given = wanted.__qualname__, [t.__qualname__ for t in given]
        super().__init__(
            f"There is no resource {self.wanted}: the lifespan of this Jobs registry "
            f"gives {', '.join(self.given) or 'nothing'}. Return it from "
            f"Jobs(lifespan=...) as {{{self.wanted}: ...}}."
        )


class SessionMissingError(AttemptError):
    """``ctx.session`` was used, but the worker was given no session factory."""

    code = "session-missing"

    def __init__(self, job: str, option: str) -> None:
        """Tell that *job* needs the worker's *option*."""
        self.job, self.option = job, option
        super().__init__(
            f"Job {job!r} needs a session: start the worker with {option}=..., the "
            f"session factory of the application."
        )


# --- workers and the database --------------------------------------------------------


class WorkerConfigError(JobsError):
    """A worker was configured in a way that cannot work; nothing was started."""

    code = "worker-config"

    def __init__(self, reason: str, remedy: str) -> None:
        """Tell the *reason* and the *remedy*."""
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}: {remedy}.")


class WorkerStuckError(JobsError):
    """Too many threads of a worker are held by attempts that were given up."""

    code = "worker-stuck"

    def __init__(self, stuck: int) -> None:
        """Tell that *stuck* attempts never came back after their timeout."""
        self.stuck = stuck
        super().__init__(
            f"{stuck} attempts were given up and their handlers have not come back, so "
            f"this process was stopped: start it again (a supervisor does), and give "
            f"what those handlers wait for a timeout of its own."
        )


class RunRefusedError(JobsError):
    """A job cannot be run inline in the way that :mod:`sqla_jobs.testing` was asked."""

    code = "run-refused"

    def __init__(self, reason: str, remedy: str) -> None:
        """Tell the *reason* and the *remedy*."""
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}: {remedy}.")


class DatabaseUnavailableError(JobsError):
    """The database cannot be reached, or is read-only."""

    code = "database-unavailable"

    def __init__(self, what: str, reason: str) -> None:
        """Tell that *what* failed for *reason*."""
        self.what, self.reason = what, reason
        super().__init__(
            f"{what}: {reason}. Check the URL, the network and whether the server "
            f"accepts writes."
        )


class SchemaVersionError(JobsError):
    """The tables and the code are too far apart."""

    code = "schema-version"

    def __init__(self, found: str, needed: str, remedy: str) -> None:
        """Tell what was *found*, what is *needed* and the *remedy*."""
        self.found, self.needed, self.remedy = found, needed, remedy
        super().__init__(f"{found}, but {needed}: {remedy}.")
