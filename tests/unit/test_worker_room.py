"""The room of a queue: order, limit, and how much is claimed ahead."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta

from sqla_jobs import NO_TENANT, Jobs
from sqla_jobs.worker.attempts import Attempt
from sqla_jobs.worker.lease import Lease
from sqla_jobs.worker.room import BATCH, HOLD, MAX_AHEAD, Room
from tests.support.execution import EPOCH, Claim

JOBS = Jobs()


@JOBS.job("a", input=int, idempotency_key=str, tenant=NO_TENANT)
def job(ctx, value):
    return None


NUMBERS = itertools.count(1)


def attempt(room, priority=5, after=0, claimed_at=None):
    claim = Claim(
        id=f"{next(NUMBERS):032x}",
        fence=1,
        name="a",
        tenant="",
        queue=room.queue,
        key="k",
        priority=priority,
        attempt=1,
        max_attempts=3,
        interruptions=0,
        run_at=EPOCH + timedelta(seconds=after),
        traceparent=None,
        enqueued_by=None,
        input="1",
    )
    at = time.monotonic() if claimed_at is None else claimed_at
    return Attempt(claim, job, room, Lease(30.0), at)


def claim_into(room, count, **options):
    batch = [attempt(room, **options) for _ in range(count)]
    room.claimed += count
    return batch, room.admit(batch)


def test_nothing_is_claimed_ahead_before_it_is_known_how_long_attempts_take():
    room = Room("q", 10)
    assert room.vacancy() == 10
    claim_into(room, 10)
    assert room.vacancy() == 0
    assert not room.idle


def test_quick_attempts_are_claimed_ahead_and_slow_ones_are_not():
    quick, slow = Room("q", 10), Room("q", 10)
    for room, seconds in ((quick, 0.0001), (slow, 1.0)):
        claim_into(room, 1)
        room.leave(seconds)
    assert quick.ahead == MAX_AHEAD
    assert slow.ahead == 0


def test_about_a_quarter_of_a_second_of_work_waits():
    room = Room("q", 10)
    claim_into(room, 1)
    room.leave(0.010)
    assert room.ahead == 250


def test_the_setting_decides_when_given():
    room = Room("q", 2, 7)
    assert room.vacancy() == 9
    assert Room("q", 2, 0).vacancy() == 2


def test_what_is_not_settled_takes_room():
    room = Room("q", 2, 0)
    claim_into(room, 2)
    room.leave(0.001)
    assert room.vacancy() == 0
    room.settled += 1
    assert room.vacancy() == 1


def test_two_claims_are_merged_in_order():
    room = Room("q", 1, BATCH)
    _, (first,) = claim_into(room, 1)
    late, started = claim_into(room, 2, priority=5, after=10)
    assert started == []
    older, _ = claim_into(room, 1, priority=5, after=1)
    better, _ = claim_into(room, 1, priority=0, after=99)
    order = []
    while (following := room.leave(0.1)) is not None:
        order.append(following)
    assert first not in order
    assert order == [*better, *older, *late]
    assert room.running == 0


def test_what_waits_too_long_is_given_back_and_nothing_more_claimed_ahead():
    room = Room("q", 1)
    claim_into(room, 1)
    room.leave(0.0001)
    assert room.ahead > 0
    old = time.monotonic() - HOLD - 1
    batch, (running,) = claim_into(room, 3, claimed_at=old)
    fresh, _ = claim_into(room, 1)
    assert room.overdue() == [a for a in batch if a is not running]
    assert room.ahead == 0
    assert room.leave(0.1) is fresh[0]


def test_a_closed_room_starts_nothing():
    room = Room("q", 1, 10)
    batch, (running,) = claim_into(room, 3)
    assert set(room.close()) == set(batch) - {running}
    assert room.leave(0.1) is None
    late, started = claim_into(room, 1)
    assert started == []
    assert room.close() == late


def test_only_what_waits_can_be_withdrawn():
    room = Room("q", 1, 10)
    batch, (running,) = claim_into(room, 2)
    waiting = next(a for a in batch if a is not running)
    assert not room.withdraw(running)
    assert room.withdraw(waiting)
    assert not room.withdraw(waiting)
    assert room.leave(0.1) is None
