"""The one lease of a worker process, and the news that a beat brings back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Uuid, bindparam, text
from sqlalchemy.orm import Session

from sqla_jobs import clock
from sqla_jobs.models import CODE_VERSION, SCHEMA_VERSION, WorkerRow
from sqla_jobs.queue.claim import Claim
from sqla_jobs.queue.control import cancel_job, pause_queue
from sqla_jobs.queue.outcome import Succeeded
from sqla_jobs.queue.renew import reap_workers
from tests.support.fleet import TTL, Fleet
from tests.support.rows import NOW, add_job

pytestmark = pytest.mark.conformance

TICK = timedelta(milliseconds=1)


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    clock.freeze(NOW)
    yield
    clock.thaw()


@pytest.fixture
def fleet(engine) -> Fleet:
    return Fleet(engine)


def worker_row(fleet: Fleet, worker: str) -> WorkerRow | None:
    with Session(fleet.engine) as session:
        return session.get(WorkerRow, UUID(worker))


def running(fleet: Fleet, count: int) -> tuple[str, list[Claim]]:
    with fleet.engine.begin() as connection:
        for _ in range(count):
            add_job(connection)
    worker = fleet.start()
    return worker, fleet.claim(worker)


def test_a_start_writes_who_it_is_and_until_when(fleet):
    worker = worker_row(fleet, fleet.start(timedelta(seconds=12.5)))
    assert worker is not None
    assert (worker.host, worker.pid, worker.queues) == ("host-1", 42, {"default": 10})
    assert worker.started_at == NOW
    assert worker.lease_until == NOW + timedelta(seconds=12.5)


@pytest.mark.needs("server")
def test_a_beat_extends_the_lease_from_now(fleet):
    worker = fleet.start()
    clock.advance(TTL / 3)
    beat = fleet.renew(worker, backends=[17, 18])

    assert beat.alive
    assert (beat.lost, beat.cancelled, beat.paused) == ([], {}, frozenset())
    assert beat.schema_version == SCHEMA_VERSION
    assert beat.min_code_version == CODE_VERSION
    row = worker_row(fleet, worker)
    assert row is not None
    assert row.lease_until == NOW + TTL / 3 + TTL
    assert row.backends == [17, 18]


@pytest.mark.needs("skip_locked")
def test_a_lease_that_is_over_is_never_renewed(fleet):
    """Its jobs may have been rescued: nobody rises from the dead."""
    worker = fleet.start()
    clock.advance(TTL)
    before = worker_row(fleet, worker)

    beat = fleet.renew(worker)

    assert not beat.alive
    after = worker_row(fleet, worker)
    assert before is not None
    assert after is not None
    assert after.lease_until == before.lease_until
    assert not fleet.renew(worker).alive


def test_a_lease_that_was_ended_on_purpose_is_never_renewed(fleet):
    worker = fleet.start()
    fleet.expire(worker)
    assert not fleet.renew(worker).alive


def test_a_worker_that_was_never_there_has_no_lease(fleet):
    assert not fleet.renew(str(uuid4())).alive


def test_a_beat_tells_which_jobs_are_lost_and_only_those(fleet):
    """Settled, rescued, deleted, claimed again: whatever is not held as it was."""
    worker, claims = running(fleet, 4)
    held, settled, deleted, overrun = claims
    fleet.settle(worker, (settled, Succeeded()))
    with fleet.engine.begin() as connection:
        for statement, claimed in (
            ("delete from sqla_job", deleted),
            ("update sqla_job set deadline_at = created_at", overrun),
        ):
            connection.execute(
                text(f"{statement} where id = :id").bindparams(
                    bindparam("id", UUID(claimed.id), type_=Uuid)
                )
            )
    clock.advance(TTL / 2)
    fleet.rescue(delay=timedelta(0))
    assert [c.id for c in fleet.claim(worker)] == [overrun.id]

    beat = fleet.renew(worker, claims)

    assert set(beat.lost) == {settled.id, deleted.id, overrun.id}
    assert held.id not in beat.lost


def test_a_beat_tells_which_jobs_are_asked_to_stop_and_why(fleet):
    worker, claims = running(fleet, 4)
    kept, silent, spoken, lost = claims
    with Session(fleet.engine) as session, session.begin():
        cancel_job(session, UUID(silent.id))
        cancel_job(session, UUID(spoken.id), reason="customer, left; 'so'")
        cancel_job(session, UUID(lost.id), reason="not ours any more")
    fleet.settle(worker, (lost, Succeeded()))

    beat = fleet.renew(worker, claims)

    assert beat.cancelled == {silent.id: None, spoken.id: "customer, left; 'so'"}
    assert beat.lost == [lost.id]
    assert kept.id not in beat.cancelled


def test_a_beat_tells_paused_queues_and_a_schema_that_wants_newer_code(fleet):
    worker = fleet.start()
    with Session(fleet.engine) as session, session.begin():
        pause_queue(session, "mail")
        pause_queue(session, "pdf")
        session.execute(text("update sqla_meta set min_code_version = 9"))

    beat = fleet.renew(worker)

    assert beat.paused == {"mail", "pdf"}
    assert beat.min_code_version == 9


def test_only_rows_of_leases_that_ended_long_ago_are_reaped(fleet):
    old, fresh = fleet.start(), fleet.start(timedelta(days=2))
    clock.advance(TTL + timedelta(days=1))
    with Session(fleet.engine) as session, session.begin():
        assert reap_workers(session, after=timedelta(days=1)) == 0
    clock.advance(TICK)
    with Session(fleet.engine) as session, session.begin():
        assert reap_workers(session, after=timedelta(days=1)) == 1

    assert worker_row(fleet, old) is None
    assert worker_row(fleet, fresh) is not None
