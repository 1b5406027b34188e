"""``sqla-jobs worker``: run jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from sqla_jobs.cli import load, logs
from sqla_jobs.cli.command import Verb, place_options
from sqla_jobs.session import JobSession
from sqla_jobs.worker import Worker
from sqla_jobs.worker.supervisor import place_number, supervise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqla_jobs.cli.command import Place

Factory: TypeAlias = Callable[[], Any]

LEVELS: Final = ("debug", "info", "warning", "error")
ROOM: Final = 10
"""How many jobs of a queue run at a time in a process, unless said."""


class _Room(click.ParamType[tuple[str, int]]):
    name = "name[:room]"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return the queue and how many of its jobs run at a time."""
        # From the right: a queue may have a colon in its name.
        name, colon, room = str(value).rpartition(":")
        if not colon:
            return str(value), ROOM
        if not name or not room.isdecimal() or int(room) < 1:
            self.fail(f"{value!r}: give NAME:ROOM, such as billing:10", param, ctx)
        return name, int(room)


@click.command(cls=Verb)
@place_options
@click.option(
    "-q",
    "--queue",
    "queues",
    type=_Room(),
    multiple=True,
    help="A queue, and how many of its jobs run at a time in each process (10);"
    " may be repeated. Without it: default:10.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 512),
    default=1,
    show_default=True,
    help="How many worker processes to keep alive.",
)
@click.option(
    "--grace",
    default="30s",
    show_default=True,
    help="How long running jobs may go on after SIGTERM.",
)
@click.option(
    "--lease-ttl",
    default="30s",
    show_default=True,
    help="How long after a process has died its jobs are rescued.",
)
@click.option(
    "--poll-interval",
    default="1s",
    show_default=True,
    help="How often to look for jobs while no notifications arrive.",
)
@click.option(
    "--listen-url",
    metavar="URL",
    envvar="SQLA_JOBS_LISTEN_URL",
    show_envvar=True,
    help="The database without a pooler in between, for the one connection that hears"
    " notifications. Through PgBouncer in transaction mode they get lost.",
)
@click.option(
    "--health-port",
    type=click.IntRange(1, 65_535),
    help="Answer /live and /ready there over HTTP; of several processes each has a port"
    " of its own, from this one upwards.",
)
@click.option(
    "--health-host",
    default="127.0.0.1",
    show_default=True,
    help="The address of that port; 0.0.0.0 for probes from outside.",
)
@click.option(
    "--log-format",
    type=click.Choice(logs.FORMATS),
    default="text",
    show_default=True,
    help="Lines for people, or one JSON object a line for programs.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="What to log to stderr, unless the application has set logging up.",
)
@click.pass_context
def worker(
    ctx: click.Context,
    /,
    *,
    place: Place,
    queues: Sequence[tuple[str, int]],
    processes: int,
    grace: str,
    lease_ttl: str,
    poll_interval: str,
    listen_url: str | None,
    health_port: int | None,
    health_host: str,
    log_format: str,
    log_level: str,
) -> None:
    """Run the application's jobs until SIGTERM or Ctrl-C.

    The first signal lets running jobs end within --grace; a second one skips ahead.
    """
    jobs = place.jobs()
    if jobs is None or not place.app:
        raise click.UsageError(
            "Which jobs? Give --app MODULE:ATTRIBUTE or set SQLA_JOBS_APP."
        )
    rooms = dict(queues) or {"default": ROOM}
    if queues and len(rooms) < len(queues):
        raise click.BadParameter("a queue is given twice.", param_hint="--queue")
    session, async_session = _factories(place)
    # Also where children will run them: a mistake is told once, and before any start.
    one = Worker(
        jobs,
        session=session,
        async_session=async_session,
        queues=rooms,
        grace=grace,
        lease_ttl=lease_ttl,
        poll_interval=poll_interval,
        listen_url=listen_url,
        health_port=None if health_port is None else health_port + place_number(),
        health_host=health_host,
    )
    logs.set_up(log_level, log_format)
    if processes == 1:
        one.run()
        return
    arguments = [
        *("--app", place.app),
        *(part for factory in place.sessions for part in ("--session", factory)),
        *(part for name, n in rooms.items() for part in ("--queue", f"{name}:{n}")),
        *("--grace", grace, "--lease-ttl", lease_ttl),
        *("--poll-interval", poll_interval),
        *("--log-level", log_level, "--log-format", log_format),
        *(() if health_port is None else ("--health-port", str(health_port))),
        *("--health-host", health_host),
    ]
    _hand_on(SQLA_JOBS_DATABASE_URL=place.url, SQLA_JOBS_LISTEN_URL=listen_url)
    command = [sys.executable, "-m", "sqla_jobs", "worker", *arguments]
    ctx.exit(supervise(command, processes))


def _hand_on(**urls: str | None) -> None:
    """Give *urls* to children by the environment.

    Arguments can be read by every user of the machine.
    """
    os.environ.update({name: url for name, url in urls.items() if url})


def _factories(place: Place) -> tuple[Factory | None, Factory | None]:
    """Return the session factories, the sync one and the async one."""
    found: dict[bool, Factory] = {}
    for named in place.sessions:
        factory = load.factory_at(named)
        kind = load.is_async(factory)
        if kind in found:
            raise click.BadParameter(
                f"{named!r} is the second {'async' if kind else 'sync'} one: give one"
                " sync and one async session factory at most.",
                param_hint="--session",
            )
        found[kind] = factory
    if not found and place.url:
        url = load.url_at(place.url)
        found[False] = sessionmaker(create_engine(url), class_=JobSession)
    if not found:
        raise click.UsageError(
            "Which database? Give --session MODULE:ATTRIBUTE, or set"
            " SQLA_JOBS_SESSION or SQLA_JOBS_DATABASE_URL."
        )
    return found.get(False), found.get(True)
