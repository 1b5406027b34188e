"""Ways in which the last statement before a commit fails, each one for real."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

from sqlalchemy import Connection, Engine, insert, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs import OnDuplicate, enqueue
from sqla_jobs.dialects import dialect_named
from sqla_jobs.exc import DuplicateJobError
from tests.support.enqueuing import Work, work
from tests.support.rows import add_job
from tests.support.shop import Order

KEY = "poison"


class Failure:
    """Makes the write of the job :data:`KEY` fail, from another connection."""

    error: ClassVar[type[Exception]] = DBAPIError
    mode: ClassVar[OnDuplicate] = "keep"
    loses_connection: ClassVar[bool] = False
    for_good: ClassVar[bool] = False
    """Changes the tables: no transaction may have used them yet, and none can again."""

    by_server: ClassVar[bool] = False
    """Only a server fails in this way."""

    def __init__(self, elsewhere: Engine) -> None:
        self.elsewhere = elsewhere

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Set up what fails later; clean up at the end."""
        yield

    def begun(self, connection: Connection) -> None:
        """Look at the transaction that will fail."""

    def strike(self) -> None:
        """Make the write fail from here on; nothing is written yet."""

    def ask(self, target: Session | Connection) -> None:
        """Write a row and enqueue the job that fails, then strike."""
        if isinstance(target, Session):
            self.begun(target.connection())
        else:
            self.begun(target)
        target.execute(insert(Order).values(id=1, org_id=1))
        enqueue(target, work, Work("healthy"))
        enqueue(target, work, Work(KEY), on_duplicate=self.mode)
        self.strike()

    def _elsewhere(self, statement: str) -> None:
        with self.elsewhere.begin() as connection:
            connection.execute(text(statement))


class Refused(Failure):
    """The job exists, and the caller asked to be told so."""

    error = DuplicateJobError
    mode = "error"

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Store the job."""
        with self.elsewhere.begin() as connection:
            add_job(connection, name=work.name, key=KEY, tenant=_no_tenant())
        yield


class ColumnGone(Failure):
    """The insert names a column that does not exist."""

    for_good = True
    by_server = True

    def strike(self) -> None:
        """Take the column away."""
        self._elsewhere("ALTER TABLE sqla_job_body RENAME COLUMN input TO gone")


class Checked(Failure):
    """A constraint that somebody added refuses the row."""

    for_good = True

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Add it before the transaction begins, where nobody can while it goes on."""
        if not self._server:
            self._elsewhere(
                "CREATE TRIGGER never BEFORE INSERT ON sqla_job"
                f" WHEN new.key = '{KEY}' BEGIN SELECT raise(ABORT, 'never'); END"
            )
        yield

    def strike(self) -> None:
        """Add it now, where others can."""
        if self._server:
            self._elsewhere(
                f"ALTER TABLE sqla_job ADD CONSTRAINT never CHECK (key <> '{KEY}')"
            )

    @property
    def _server(self) -> bool:
        return dialect_named(self.elsewhere.dialect).skip_locked


class TimedOut(Failure):
    """The key is held by another transaction for longer than the statement may take."""

    by_server = True

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Hold the key."""
        with self.elsewhere.connect() as connection:
            add_job(connection, name=work.name, key=KEY, tenant=_no_tenant())
            yield
            connection.rollback()

    def begun(self, connection: Connection) -> None:
        """Bound the statements of this transaction."""
        connection.execute(text("SET LOCAL statement_timeout = '200ms'"))


class Terminated(Failure):
    """The server ends the connection."""

    loses_connection = True
    by_server = True
    pid = 0

    def begun(self, connection: Connection) -> None:
        """Note whom the server is to end."""
        self.pid = connection.scalar(text("SELECT pg_backend_pid()")) or 0

    def strike(self) -> None:
        """End it, and wait until it is gone."""
        with self.elsewhere.begin() as connection:
            ended = connection.scalar(
                text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": self.pid}
            )
            assert ended is True


FAILURES: dict[str, type[Failure]] = {
    "refused": Refused,
    "column-gone": ColumnGone,
    "checked": Checked,
    "timed-out": TimedOut,
    "terminated": Terminated,
}


def _no_tenant() -> str:
    return work.tenant_of(Work(KEY))
