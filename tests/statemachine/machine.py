"""T67: everything that can happen to jobs, in any order, against the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import Enqueued, JobSession, clock
from sqla_jobs.dialects import dialect_named
from sqla_jobs.exc import (
    DuplicateJobError,
    JobNotCancellableError,
    JobNotDiscardableError,
    JobNotRetryableError,
    JobsError,
    LeaseLostError,
)
from sqla_jobs.queue.claim import Claim
from sqla_jobs.queue.control import (
    cancel_job,
    discard_job,
    pause_queue,
    resume_queue,
    retry_job,
)
from sqla_jobs.queue.fence import guard
from sqla_jobs.queue.outcome import Outcome, Succeeded
from sqla_jobs.queue.rescue import Rescued
from sqla_jobs.queue.retention import prune
from sqla_jobs.queue.settle import Verdict
from tests.statemachine.facts import Facts, check_step, expected, look
from tests.statemachine.given import (
    DELAY,
    FAST,
    GRACE,
    KEPT,
    LIMITS,
    NTH,
    OUTCOMES,
    RULES,
    SLOW,
    START,
    TTL,
    WISHES,
    Doc,
    Wish,
    parsed,
)
from tests.statemachine.model import FINISHED, Job, Model
from tests.support.fleet import Fleet

TABLES = ("job", "job_body", "job_output", "attempt", "worker", "queue")


@attrs.frozen
class Held:
    """A claim that somebody once got; it may be long out of date."""

    worker: str
    claim: Claim


class Machine(RuleBasedStateMachine):
    """Each step does the same to the database and to the model, and compares them."""

    engine: ClassVar[Engine]

    def __init__(self) -> None:
        super().__init__()
        clock.freeze(START)
        self.model = Model(START)
        self.fleet = Fleet(self.engine)
        self.sessions = sessionmaker(self.engine, class_=JobSession)
        self.workers: list[str] = []
        self.held: list[Held] = []
        self.one_writer = not dialect_named(self.engine.dialect).skip_locked
        self.gone: set[str] = set()
        self.version = 0
        with self.engine.begin() as connection:
            for table in TABLES:
                connection.execute(text(f"delete from sqla_{table}"))
        self.facts: Facts = self._look()

    def teardown(self) -> None:
        clock.thaw()

    def _look(self) -> Facts:
        with self.engine.connect() as connection:
            return look(connection)

    def _check(self, step: str) -> None:
        """Compare the database with the model, and with how it was before *step*."""
        facts = self._look()
        check_step(step, self.facts, facts)
        self.facts = facts
        assert facts.rows == {j.id: expected(j) for j in self.model.jobs.values()}
        assert facts.past == {j.id: j.past for j in self.model.jobs.values() if j.past}

    # --- time and workers ------------------------------------------------------------

    @rule(
        seconds=st.sampled_from([0.000001, 1, 5, 11, 31, 75, 700]), beat=st.booleans()
    )
    def let_time_pass(self, seconds: float, beat: bool) -> None:
        """Without a beat, leases end; with beats, deadlines pass under live workers."""
        # The finest step of SQLite's clock is a millisecond.
        left = timedelta(seconds=max(seconds, 0.001) if self.one_writer else seconds)
        while beat and left > TTL / 2:
            self._advance(TTL / 2)
            left -= TTL / 2
            for worker in filter(self.model.alive, self.workers):
                assert self.fleet.renew(worker, ttl=TTL).alive
                self.model.leases[worker] = self.model.now + TTL
        self._advance(left)

    def _advance(self, by: timedelta) -> None:
        self.model.now = clock.advance(by)

    def _worker(self, nth: int) -> str:
        """Choose a worker; mostly one that is alive, started if there is none."""
        if nth % 8 == 7 and self.workers:
            return self.workers[nth % len(self.workers)]
        alive = [w for w in self.workers[-3:] if self.model.alive(w)]
        if len(alive) < 2:
            worker = self.fleet.start(TTL)
            self.workers.append(worker)
            self.model.leases[worker] = self.model.now + TTL
            alive.append(worker)
        return alive[nth % len(alive)]

    def _owned(self) -> list[Held]:
        """Return the claims whose attempt owns its job still."""
        return [h for h in self.held if self._owns(h)]

    def _owns(self, held: Held) -> bool:
        job = self.model.find(_id(held.claim))
        return job is not None and job.owned_by(held.worker, held.claim.fence)

    def _picked(self, nths: Sequence[int]) -> list[Held]:
        """Choose claims: of attempts that go on, or (one in three) out of date.

        The best zombie is one whose job runs again, at best on the same worker.
        """
        owned = self._owned()
        owners = {(h.claim.id, h.worker) for h in owned}
        running = {h.claim.id for h in owned}
        stale = [h for h in self.held if h not in owned]
        again = [h for h in stale if h.claim.id in running]
        same = [h for h in again if (h.claim.id, h.worker) in owners]
        zombies = same or again or stale or owned
        pools = [zombies, owned or stale, owned or stale]
        return [pools[n % 3][n // 3 % len(pools[n % 3])] for n in nths]

    @rule(nth=NTH)
    def beat(self, nth: int) -> None:
        model, worker = self.model, self._worker(nth)
        mine = [h for h in self.held if h.worker == worker]
        # With one writer, a lease that ran out may be renewed until a sweep has seen it.
        alive = worker not in self.gone if self.one_writer else model.alive(worker)
        if alive:
            model.leases[worker] = model.now + TTL

        news = self.fleet.renew(worker, [h.claim for h in mine], ttl=TTL)

        assert news.alive == alive
        if alive:
            assert news.paused == model.paused
            assert set(news.lost) == {h.claim.id for h in mine if not self._owns(h)}
            jobs = {h.claim.id: model.find(_id(h.claim)) for h in mine if self._owns(h)}
            assert news.cancelled == {
                id_: j.cancel_reason for id_, j in jobs.items() if j.cancel_requested_at
            }
        self._check("renew")

    # --- enqueue ---------------------------------------------------------------------

    def _new(self, session: JobSession, wish: Wish) -> Callable[[], None]:
        """Enqueue on *session*; what comes back does the same to the model."""
        self.version += 1
        handle: Enqueued = session.enqueue(
            wish.spec,
            Doc(wish.key, self.version),
            on_duplicate=wish.mode,
            priority=wish.priority,
            delay=wish.delay,
        )
        new = Job(
            id=handle.id,
            name=wish.spec.name,
            key=f"doc:{wish.key}",
            queue=wish.spec.queue,
            priority=wish.priority,
            run_at=self.model.now + wish.delay,
            input={"key": wish.key, "version": self.version},
            max_attempts=wish.spec.retry.attempts,
            created_at=self.model.now,
        )

        def written() -> None:
            outcome = self.model.enqueue(new, wish.mode)
            job = self.model.jobs[new.name, new.key]
            assert (handle.outcome, handle.id) == (outcome, job.id)
            assert handle.state == job.state

        return written

    @rule(wish=WISHES)
    def enqueue(self, wish: Wish) -> None:
        with self.sessions() as session:
            written = self._new(session, wish)
            session.commit()
        written()
        self._check("enqueue")

    @rule(wish=WISHES)
    def enqueue_what_must_be_new(self, wish: Wish) -> None:
        wish = attrs.evolve(wish, mode="error")
        exists = (wish.spec.name, f"doc:{wish.key}") in self.model.jobs
        with self.sessions() as session:
            written = self._new(session, wish)
            if exists:
                with pytest.raises(DuplicateJobError):
                    session.commit()
            else:
                session.commit()
                written()
        self._check("enqueue")

    @rule(wish=WISHES, inner=WISHES, way=st.sampled_from(["all", "inner", "none"]))
    def enqueue_and_roll_back(self, wish: Wish, inner: Wish, way: str) -> None:
        """All of it, or what came inside a savepoint, or nothing."""
        kept = []
        with self.sessions() as session:
            savepoint = session.begin_nested()
            kept.append(self._new(session, inner))
            if way == "inner":
                savepoint.rollback()
                kept.clear()
            else:
                savepoint.commit()
            kept.append(self._new(session, wish))
            session.write_jobs()
            if way == "all":
                session.rollback()
                kept.clear()
            else:
                session.commit()
        for written in kept:
            written()
        self._check("enqueue")

    # --- claim and settle ------------------------------------------------------------

    @rule(nth=NTH, room=st.integers(1, 4), slow=st.integers(0, 2))
    def claim(self, nth: int, room: int, slow: int) -> None:
        rooms = {FAST.queue: room, SLOW.queue: slow}
        rooms = {q: r for q, r in rooms.items() if r and q not in self.model.paused}
        queues = [FAST.queue, SLOW.queue]
        wanted = self.model.next_due(set(queues))
        due = self.fleet.next_due(queues)
        assert due == (wanted if wanted is None else pytest.approx(wanted))
        self._claim(self._worker(nth), rooms)

    def _claim(self, worker: str, rooms: dict[str, int]) -> None:
        wanted = self.model.claim(worker, rooms, LIMITS)
        claims = self.fleet.claim(worker, rooms, limits=LIMITS)
        assert [(_id(c), c.fence, c.attempt) for c in claims] == [
            (t.id, t.fence, t.attempt) for t in wanted
        ]
        assert [json.loads(c.input or "null") for c in claims] == [
            t.input for t in wanted
        ]
        self.held += [Held(worker, c) for c in claims]
        self._check("claim")

    @rule(ended=st.lists(st.tuples(NTH, OUTCOMES), min_size=1, max_size=4))
    @precondition(lambda self: self.held)
    def settle(self, ended: list[tuple[int, Outcome]]) -> None:
        picked = self._picked([nth for nth, _ in ended])
        batches: dict[str, dict[str, tuple[Claim, Outcome]]] = {}
        for held, (_, outcome) in zip(picked, ended, strict=True):
            batches.setdefault(held.worker, {})[held.claim.id] = held.claim, outcome
        for worker, batch in batches.items():
            wanted = {
                c.id
                for c, outcome in batch.values()
                if self.model.settle(worker, _id(c), c.fence, parsed(outcome))
            }
            assert self.fleet.settle(worker, *batch.values()) == wanted
            self._check("settle")

    @rule(nth=NTH, outcome=OUTCOMES)
    @precondition(lambda self: self.held)
    def settle_alone(self, nth: int, outcome: Outcome) -> None:
        self._settle_alone(*self._picked([nth]), outcome)

    def _settle_alone(self, held: Held, outcome: Outcome) -> None:
        worker, c = held.worker, held.claim
        wanted = self.model.settle(worker, _id(c), c.fence, parsed(outcome))
        verdict = self.fleet.settle_alone(worker, c, outcome)
        assert verdict is (Verdict.ACCEPTED if wanted else Verdict.STALE)
        whose = self.model.whose(_id(c), c.fence)
        assert self.fleet.was_settled(worker, c).value == whose
        self._check("settle")

    @rule(nth=NTH, more=st.none() | WISHES, completing=st.booleans())
    @precondition(lambda self: self.held)
    def commit_the_attempts_session(
        self, nth: int, more: Wish | None, completing: bool
    ) -> None:
        (held,) = self._picked([nth])
        owns = self._owns(held)
        attempt = self.fleet.guard(held.worker, held.claim)
        with self.sessions() as session:
            guard(session, attempt)
            session.execute(text("select 1"))
            written = None if more is None else self._new(session, more)
            if completing:
                attempt.complete('{"done":true}')
            if owns:
                session.commit()
            else:
                with pytest.raises(LeaseLostError):
                    session.commit()
        assert attempt.completed == (owns and completing)
        if owns and written is not None:
            written()
        if attempt.completed:
            done = Succeeded({"done": True})
            c = held.claim
            assert self.model.settle(held.worker, _id(c), c.fence, done)
        self._check("commit")

    def _live(self, nth: int, outcome: Outcome, wish: Wish, cancel: bool) -> None:
        """Claim a job, have something asked for meanwhile, and end the attempt."""
        before = len(self.held)
        self._claim(self._worker(nth), {FAST.queue: 1} if nth % 3 else {SLOW.queue: 1})
        if len(self.held) == before:
            self.enqueue(attrs.evolve(wish, delay=timedelta(0)))
            return
        held = self.held[-1]
        job = self.model.find(_id(held.claim))
        assert job is not None
        self._advance(timedelta(seconds=1))
        if cancel and nth % 2:
            self._control(job, cancel_job, self.model.cancel, JobNotCancellableError)
        if wish.mode == "rerun":
            spec = FAST if job.name == FAST.name else SLOW
            key = int(job.key.removeprefix("doc:"))
            self.enqueue(attrs.evolve(wish, spec=spec, key=key))
        self._settle_alone(held, outcome)

    @rule(nth=NTH, outcome=OUTCOMES, wish=WISHES, cancel=st.booleans())
    def live(self, nth: int, outcome: Outcome, wish: Wish, cancel: bool) -> None:
        self._live(nth, outcome, wish, cancel)

    @rule(nth=NTH, outcome=OUTCOMES, wish=WISHES, cancel=st.booleans())
    def live_on(self, nth: int, outcome: Outcome, wish: Wish, cancel: bool) -> None:
        """The same once more: what has happened to a job before is what matters."""
        self._live(nth, outcome, wish, cancel)

    @rule(nth=NTH, outcome=OUTCOMES, times=st.integers(2, 5), wish=WISHES)
    def stumble(self, nth: int, outcome: Outcome, times: int, wish: Wish) -> None:
        """End several attempts in the same way, one after the other."""
        wish = attrs.evolve(wish, mode="keep")
        for _ in range(times):
            self._live(nth * 2, outcome, wish, cancel=False)
            self._advance(getattr(outcome, "delay", timedelta(0)))

    @rule(nth=NTH, wish=WISHES)
    def overrun(self, nth: int, wish: Wish) -> None:
        """Let a deadline pass while the worker goes on beating."""
        self.enqueue(attrs.evolve(wish, spec=SLOW, delay=timedelta(0)))
        self._claim(self._worker(nth), {SLOW.queue: 1})
        self.let_time_pass(75, beat=True)
        self._sweep()

    # --- sweeps ----------------------------------------------------------------------

    @rule(nth=NTH, expire=st.booleans())
    @precondition(lambda self: any(j.worker for j in self.model.jobs.values()))
    def rescue(self, nth: int, expire: bool) -> None:
        owned = self._owned()
        if expire:
            worker = owned[nth % len(owned)].worker
            self.fleet.expire(worker)
            self.gone.add(worker)
            self.model.leases[worker] = self.model.now - timedelta(days=1)
        self._sweep()

    def _sweep(self) -> None:
        before = self.model.now - GRACE
        self.gone.update(w for w in self.workers if self.model.leases[w] <= before)
        wanted = self.model.rescue(GRACE, DELAY)
        rescued = self.fleet.rescue(grace=GRACE, delay=DELAY)
        assert {
            _id(r): (r.state, r.attempt, r.worker_id, r.timed_out) for r in rescued
        } == wanted
        self._check("rescue")

    @rule()
    @precondition(lambda self: any(j.finished_at for j in self.model.jobs.values()))
    def prune(self) -> None:
        wanted = self.model.prune(KEPT.finished, KEPT.dead)
        with Session(self.engine) as session, session.begin():
            assert prune(session, RULES).count == wanted
        self._check("prune")

    # --- people ----------------------------------------------------------------------

    def _a_job(self, nth: int, states: Collection[str]) -> Job:
        """Choose a job, mostly one in *states*."""
        found = list(self.model.jobs.values())
        right = [j for j in found if j.state in states] or found
        return found[nth % len(found)] if nth % 8 == 7 else right[nth % len(right)]

    def _control(
        self,
        job: Job,
        verb: Callable[..., None],
        model: Callable[..., bool],
        refused: type[JobsError],
        **options: Any,
    ) -> None:
        with self.sessions() as session:
            if model(job, **options):
                verb(session, job.id, **options)
                session.commit()
            else:
                with pytest.raises(refused):
                    verb(session, job.id, **options)
        self._check(verb.__name__.removesuffix("_job"))

    @rule(nth=NTH, reason=st.sampled_from([None, "first", "second"]))
    @precondition(lambda self: self.model.jobs)
    def cancel(self, nth: int, reason: str | None) -> None:
        job, refused = self._a_job(nth, {"running"}), JobNotCancellableError
        self._control(job, cancel_job, self.model.cancel, refused, reason=reason)

    @rule(nth=NTH)
    @precondition(lambda self: self.model.jobs)
    def retry(self, nth: int) -> None:
        job, refused = self._a_job(nth, FINISHED), JobNotRetryableError
        self._control(job, retry_job, self.model.retry, refused)

    @rule(nth=NTH)
    @precondition(lambda self: self.model.jobs)
    def discard(self, nth: int) -> None:
        job, refused = self._a_job(nth, FINISHED), JobNotDiscardableError
        self._control(job, discard_job, self.model.discard, refused)

    @rule(queue=st.sampled_from([FAST.queue, SLOW.queue]))
    def pause_or_resume(self, queue: str) -> None:
        with self.sessions.begin() as session:
            if self.model.paused:  # One at most, else nothing ever runs.
                paused = self.model.paused.pop()
                assert resume_queue(session, paused)
                assert not resume_queue(session, paused)
            else:
                assert pause_queue(session, queue)
                assert not pause_queue(session, queue)
                self.model.paused.add(queue)
        self._check("pause")


def _id(row: Claim | Rescued) -> UUID:
    return UUID(row.id)
