"""What a worker is told, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from sqla_jobs.declare.duration import Duration, parse_duration
from sqla_jobs.declare.registry import Jobs
from sqla_jobs.declare.text import check_name
from sqla_jobs.exc import WorkerConfigError
from sqla_jobs.worker.heartbeat import beat_interval

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import URL

    from sqla_jobs.asyncio import AsyncJobSession
    from sqla_jobs.session import JobSession

    SyncFactory: TypeAlias = Callable[[], JobSession]
    AsyncFactory: TypeAlias = Callable[[], AsyncJobSession]
    Place: TypeAlias = URL | str

MAX_CONCURRENCY: Final = 10_000
MAX_PREFETCH: Final = 100_000
MAX_PORT: Final = 65_535


def _seconds(value: Duration, field: str) -> float:
    return parse_duration(value, field=field).total_seconds()


@attrs.frozen(kw_only=True)
class Config:
    """The checked options of a worker; durations in seconds."""

    jobs: Jobs
    session: SyncFactory | None
    async_session: AsyncFactory | None
    queues: Mapping[str, int]
    grace: float
    lease_ttl: float
    poll_interval: float
    prefetch: int | None
    url: Place | None
    listen_url: Place | None
    health: tuple[str, int] | None

    @classmethod
    def of(
        cls,
        jobs: Jobs,
        *,
        session: SyncFactory | None,
        async_session: AsyncFactory | None,
        queues: Mapping[str, int],
        grace: Duration,
        lease_ttl: Duration,
        poll_interval: Duration,
        prefetch: int | None,
        url: Place | None,
        listen_url: Place | None,
        health_port: int | None,
        health_host: str,
    ) -> Config:
        """Return the options, or raise :exc:`.WorkerConfigError` for what cannot work."""
        ttl = _seconds(lease_ttl, "lease_ttl")
        if ttl <= 2 * beat_interval(ttl):
            raise WorkerConfigError(
                f"lease_ttl={lease_ttl!r} is not more than twice the heartbeat's "
                f"interval of {beat_interval(ttl):g} s, so one late beat loses every job",
                "give at least '1s'; 30s is the default",
            )
        config = cls(
            jobs=jobs,
            session=session,
            async_session=async_session,
            queues=_checked_queues(queues),
            grace=_seconds(grace, "grace"),
            lease_ttl=ttl,
            poll_interval=_seconds(poll_interval, "poll_interval"),
            prefetch=_checked_prefetch(prefetch),
            url=url,
            listen_url=listen_url,
            health=_checked_health(health_host, health_port),
        )
        config._check_factories()
        return config

    @property
    def concurrency(self) -> int:
        """How many attempts may run at a time, over all queues."""
        return sum(self.queues.values())

    @property
    def runs_async(self) -> bool:
        """Whether any handler is ``async def``."""
        return any(spec.is_async for spec in self.jobs.specs.values())

    def _check_factories(self) -> None:
        """Refuse handlers that would not have the session of their kind."""
        if self.session is None and self.async_session is None:
            raise WorkerConfigError(
                "A worker needs the application's session factory",
                "give session=sessionmaker(...), or async_session= for async handlers",
            )
        missing: dict[str, list[str]] = {}
        for spec in self.jobs.specs.values():
            if spec.function is None or spec.queue not in self.queues:
                continue
            option = "async_session" if spec.is_async else "session"
            factory: Any = self.async_session if spec.is_async else self.session
            if factory is None:
                missing.setdefault(option, []).append(spec.name)
        for option, names in missing.items():
            kind = "async" if option == "async_session" else "sync"
            shown = ", ".join(sorted(names)[:5])
            raise WorkerConfigError(
                f"{len(names)} {kind} handlers ({shown}) have no session factory",
                f"give {option}=, or serve their queues with another worker",
            )


def _checked_queues(queues: object) -> dict[str, int]:
    if not isinstance(queues, Mapping) or not queues:
        raise WorkerConfigError(
            f"queues={queues!r} names no queue", "give {'default': 10}, for example"
        )
    for name, limit in queues.items():
        check_name(name, option="queues")
        if not _is_number(limit, 1, MAX_CONCURRENCY):
            raise WorkerConfigError(
                f"queues={{{name!r}: {limit!r}}} is no number of attempts",
                f"give 1 to {MAX_CONCURRENCY}",
            )
    return dict(queues)


def _checked_prefetch(prefetch: int | None) -> int | None:
    if prefetch is not None and not _is_number(prefetch, 0, MAX_PREFETCH):
        raise WorkerConfigError(
            f"prefetch={prefetch!r} is no number of jobs",
            f"give 0 to {MAX_PREFETCH}, or None to let the worker find it",
        )
    return prefetch


def _checked_health(host: str, port: int | None) -> tuple[str, int] | None:
    if port is None:
        return None
    if not _is_number(port, 0, MAX_PORT):
        raise WorkerConfigError(
            f"health_port={port!r} is no port", f"give 0 to {MAX_PORT}, or None"
        )
    return host, port


def _is_number(value: object, least: int, most: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return least <= value <= most
