"""A worker's process that stands still with a row of the business locked."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

from sqlalchemy import create_engine, text, update
from sqlalchemy.exc import DBAPIError

from sqla_jobs import JobSession
from sqla_jobs.queue.fence import guard
from tests.support.fleet import Fleet
from tests.support.shop import Order

GO_ON = signal.SIGUSR1


def hold_an_order(url: str, seconds: float) -> None:
    """Claim a job, lock order 1 in the attempt's session, and wait for a signal.

    Prints ``worker ID`` once the last beat has given it *seconds* more, and after
    :data:`GO_ON` how its completing commit ended.
    """
    # The wake-up descriptor is written by whichever thread gets the signal; a handler
    # written in Python would wait for the main thread, which nothing interrupts then.
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    signal.signal(GO_ON, lambda number, frame: None)
    engine = create_engine(url)
    fleet = Fleet(engine)
    worker = fleet.start(timedelta(minutes=1))
    claimed = fleet.claim_one(worker)
    with JobSession(engine) as session:
        attempt = fleet.guard(worker, claimed)
        guard(session, attempt)
        session.execute(update(Order).where(Order.id == 1).values(note="zombie"))
        pid = session.scalar(text("select pg_backend_pid()"))
        assert isinstance(pid, int)
        lease = timedelta(seconds=seconds)
        fleet.renew(worker, [claimed], ttl=lease, backends=[pid])
        print("worker", worker, flush=True)
        os.read(told, 1)
        attempt.complete(None)
        try:
            session.commit()
        except DBAPIError as error:
            print("refused:", type(error.orig).__name__, flush=True)
        else:
            print("committed", flush=True)
