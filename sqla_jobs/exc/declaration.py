"""A declaration is wrong, and always in the same way: raised where it was written."""

from __future__ import annotations

from sqla_jobs.exc.base import JobsError


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
