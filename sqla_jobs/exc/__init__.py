"""The errors: each carries facts, builds its own sentence and says what to do.

Two branches: :exc:`.DeclarationError` (always the same, raised where the mistake was
written, usually at import) and everything else, which happens at run time. Each class
has a ``code``; ``docs/errors.md`` has a section for every code.
"""

from sqla_jobs.exc.attempt import (
    AttemptError,
    JobAbortedError,
    JobTimeoutError,
    LeaseLostError,
    ResourceMissingError,
    SessionMissingError,
)
from sqla_jobs.exc.backfill import (
    BackfillAppliedError,
    BackfillEnvironmentError,
    BackfillError,
    BackfillFailedError,
    BackfillLostError,
    BackfillMigrationPendingError,
    BackfillPendingError,
    BackfillRunningError,
    BackfillStatusError,
    BackfillUnknownError,
    MigrationsUnreadableError,
)
from sqla_jobs.exc.base import (
    JobsError,
)
from sqla_jobs.exc.declaration import (
    DeclarationError,
    DurationError,
    HandlerError,
    IdempotencyKeyRequiredError,
    InvalidOptionError,
    JobNameTakenError,
    TenantRequiredError,
    UnsupportedTypeError,
)
from sqla_jobs.exc.enqueue import (
    DatabaseUnsupportedError,
    DuplicateJobError,
    EngineUnsuitableError,
    EnqueueArgumentError,
    EnqueueConflictError,
    EnqueueError,
    EnqueueRoutingError,
    JobIdTakenError,
    JobNotDeclaredError,
    NotWrittenError,
    PayloadError,
)
from sqla_jobs.exc.running import (
    DatabaseUnavailableError,
    RunRefusedError,
    SchemaStepError,
    SchemaVersionError,
    WorkerConfigError,
    WorkerStuckError,
)
from sqla_jobs.exc.steer import (
    JobNotCancellableError,
    JobNotDiscardableError,
    JobNotFoundError,
    JobNotRetryableError,
    RowUnreadableError,
)

__all__ = [
    "AttemptError",
    "BackfillAppliedError",
    "BackfillEnvironmentError",
    "BackfillError",
    "BackfillFailedError",
    "BackfillLostError",
    "BackfillMigrationPendingError",
    "BackfillPendingError",
    "BackfillRunningError",
    "BackfillStatusError",
    "BackfillUnknownError",
    "DatabaseUnavailableError",
    "DatabaseUnsupportedError",
    "DeclarationError",
    "DuplicateJobError",
    "DurationError",
    "EngineUnsuitableError",
    "EnqueueArgumentError",
    "EnqueueConflictError",
    "EnqueueError",
    "EnqueueRoutingError",
    "HandlerError",
    "IdempotencyKeyRequiredError",
    "InvalidOptionError",
    "JobAbortedError",
    "JobIdTakenError",
    "JobNameTakenError",
    "JobNotCancellableError",
    "JobNotDeclaredError",
    "JobNotDiscardableError",
    "JobNotFoundError",
    "JobNotRetryableError",
    "JobTimeoutError",
    "JobsError",
    "LeaseLostError",
    "MigrationsUnreadableError",
    "NotWrittenError",
    "PayloadError",
    "ResourceMissingError",
    "RowUnreadableError",
    "RunRefusedError",
    "SchemaStepError",
    "SchemaVersionError",
    "SessionMissingError",
    "TenantRequiredError",
    "UnsupportedTypeError",
    "WorkerConfigError",
    "WorkerStuckError",
]
