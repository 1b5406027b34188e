"""The executor: from a claim to how its attempt ended, for both kinds of handlers."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta

import attrs
import pytest

from sqla_jobs import NO_TENANT, Discard, Jobs, Retry, RetryLater, Snooze, constant
from sqla_jobs.exc import JobAbortedError, LeaseLostError
from sqla_jobs.queue import outcome as ended
from sqla_jobs.worker.ending import Mark
from tests.support.execution import Execution
from tests.support.waiting import wait_until

KINDS = ("sync", "async")


@attrs.frozen
class Order:
    number: int


def declare(jobs, body, kind, *, input=object, **options):
    """Declare a job whose handler calls *body*, sync or async."""
    options = {
        "input": input,
        "idempotency_key": lambda i: "k",
        "tenant": NO_TENANT,
        "retry": Retry(attempts=3, backoff=constant("5s")),
        **options,
    }
    name = f"job.{len(jobs.specs)}"
    if kind == "sync":

        @jobs.job(name, **options)
        def handler(ctx, value):
            return body(ctx, value)
    else:

        @jobs.job(name, **options)
        async def handler(ctx, value):
            result = body(ctx, value)
            return await result if asyncio.iscoroutine(result) else result

    return handler


def raising(error):
    def body(ctx, value):
        raise error

    return body


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def jobs():
    return Jobs()


def test_a_returned_value_is_stored_as_json(jobs, kind):
    spec = declare(jobs, lambda ctx, order: {"n": order.number}, kind, input=Order)
    with Execution(jobs) as execution:
        (outcome,) = execution.run(execution.attempt(spec, '{"number":7}'))
    assert outcome == ended.Succeeded('{"n":7}')


def test_none_stores_nothing(jobs, kind):
    spec = declare(jobs, lambda ctx, value: None, kind)
    with Execution(jobs) as execution:
        (outcome,) = execution.run(execution.attempt(spec))
    assert outcome == ended.Succeeded(None)


@pytest.mark.parametrize("text", ["", "{", '{"number":"x"}', "{}", "NaN"])
def test_an_input_that_cannot_be_read_is_dead_with_its_reason(jobs, kind, text):
    spec = declare(jobs, lambda ctx, value: None, kind, input=Order)
    with Execution(jobs) as execution:
        (outcome,) = execution.run(execution.attempt(spec, text))
    assert isinstance(outcome, ended.Dead)
    assert outcome.error_type == "PayloadError"
    assert "input" in outcome.error


@pytest.mark.covers("C34")
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(2),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        MemoryError(),
        RecursionError("deep"),
        BaseException("bare"),
        ExceptionGroup("both", [ValueError("a"), KeyError("b")]),
    ],
    ids=lambda e: type(e).__name__,
)
def test_c34_whatever_a_handler_raises_fails_its_attempt_only(jobs, kind, error):
    """The neighbour finishes, the worker lives, the type is recorded."""
    spec = declare(jobs, raising(error), kind)
    neighbour = declare(jobs, lambda ctx, value: "fine", kind)
    with Execution(jobs, limit=2) as execution:
        first, second, third = execution.run(
            execution.attempt(spec),
            execution.attempt(neighbour),
            execution.attempt(spec),
        )
        (after,) = execution.run(execution.attempt(neighbour))
    for outcome in (first, third):
        assert isinstance(outcome, ended.Retry)
        assert outcome.error_type == type(error).__name__
        assert outcome.delay == timedelta(seconds=5)
    assert second == after == ended.Succeeded('"fine"')


@pytest.mark.covers("C34")
def test_c34_a_system_exit_in_a_task_of_a_handler_does_not_end_the_loop(jobs):
    async def quits():
        raise SystemExit(3)

    async def body(ctx, value):
        task = asyncio.create_task(quits())
        try:
            await task
        except SystemExit:
            return "survived"

    spec = declare(jobs, body, "async")
    with Execution(jobs) as execution:
        outcomes = execution.run(*[execution.attempt(spec) for _ in range(3)])
    assert outcomes == [ended.Succeeded('"survived"')] * 3


@pytest.mark.covers("C34")
@pytest.mark.parametrize("awaits", [False, True])
def test_c34_a_handler_that_cancels_its_own_task_fails_alone(jobs, awaits):
    async def body(ctx, value):
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if awaits:
            await asyncio.sleep(0)

    spec = declare(jobs, body, "async")
    fine = declare(jobs, lambda ctx, value: 1, "async")
    with Execution(jobs, limit=1) as execution:
        first, second = execution.run(execution.attempt(spec), execution.attempt(fine))
    if awaits:
        assert isinstance(first, ended.Retry)
        assert first.error_type == "CancelledError"
    assert second == ended.Succeeded("1")


@pytest.mark.covers("C31")
@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_c31_the_last_attempt_is_dead_and_no_other(jobs, kind, attempts):
    spec = declare(
        jobs, raising(ValueError("no")), kind, retry=Retry(attempts=attempts)
    )
    with Execution(jobs) as execution:
        outcomes = execution.run(
            *[execution.attempt(spec, attempt=n + 1) for n in range(attempts)]
        )
    kinds = [type(o).__name__ for o in outcomes]
    assert kinds == ["Retry"] * (attempts - 1) + ["Dead"]


def test_the_rows_own_number_of_attempts_counts(jobs, kind):
    """An operator gave the job one more than its declaration does."""
    spec = declare(jobs, raising(ValueError("no")), kind, retry=Retry(attempts=1))
    with Execution(jobs) as execution:
        (outcome,) = execution.run(execution.attempt(spec, attempt=1, max_attempts=2))
    assert isinstance(outcome, ended.Retry)


def test_signals_say_how_the_attempt_ends(jobs, kind):
    later = declare(jobs, raising(RetryLater("90s")), kind)
    snooze = declare(jobs, raising(Snooze("10m")), kind)
    discard = declare(jobs, raising(Discard("not wanted")), kind)
    with Execution(jobs) as execution:
        first, second, third = execution.run(
            execution.attempt(later),
            execution.attempt(snooze),
            execution.attempt(discard),
        )
    assert isinstance(first, ended.Retry)
    assert first.delay == timedelta(seconds=90)
    assert second == ended.Snooze(timedelta(minutes=10))
    assert third == ended.Dead("Discard", "not wanted")


def test_a_snooze_is_no_failure_even_at_the_last_attempt(jobs, kind):
    spec = declare(jobs, raising(Snooze("1s")), kind, retry=Retry(attempts=1))
    with Execution(jobs) as execution:
        (outcome,) = execution.run(execution.attempt(spec, attempt=1))
    assert isinstance(outcome, ended.Snooze)


@pytest.mark.covers("T58")
@pytest.mark.parametrize(
    "value", [{1, 2}, float("nan"), object(), "a\x00b", "\ud800", {"k": b"x"}]
)
def test_t58_an_output_that_cannot_be_stored_fails_that_job_only(jobs, kind, value):
    spec = declare(jobs, lambda ctx, order: value, kind)
    fine = declare(jobs, lambda ctx, order: 2**63 + 1, kind)
    with Execution(jobs) as execution:
        outcome, neighbour = execution.run(
            execution.attempt(spec), execution.attempt(fine)
        )
    assert isinstance(outcome, ended.Retry)
    assert outcome.error_type == "PayloadError"
    assert neighbour == ended.Succeeded("9223372036854775809")


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_than_the_limit_run_at_a_time_both_kinds_together(jobs, limit):
    running, most = [], []
    lock = threading.Lock()
    full = threading.Event()

    def enter():
        with lock:
            running.append(1)
            most.append(len(running))
            if len(running) == limit:
                full.set()

    def leave():
        with lock:
            running.pop()

    def sync_body(ctx, value):
        enter()
        assert full.wait(10)
        leave()

    async def async_body(ctx, value):
        enter()
        await asyncio.to_thread(full.wait, 10)
        leave()

    sync, async_ = declare(jobs, sync_body, "sync"), declare(jobs, async_body, "async")
    with Execution(jobs, limit=limit) as execution:
        attempts = [
            execution.attempt(spec) for _ in range(10) for spec in (sync, async_)
        ]
        outcomes = execution.run(*attempts)
    assert outcomes == [ended.Succeeded()] * 20
    assert max(most) == limit


def test_better_priorities_and_older_jobs_start_first(jobs, kind):
    started = []
    gate = threading.Event()

    def first(ctx, value):
        assert gate.wait(10)

    def note(ctx, value):
        started.append(value)

    blocker = declare(jobs, first, "sync")
    spec = declare(jobs, note, kind, input=int)
    with Execution(jobs, limit=1) as execution:
        blocking = execution.attempt(blocker)
        execution.start(blocking)
        # Two claims: the second one brings better and older jobs.
        late = [execution.attempt(spec, "3", priority=5)]
        late += [execution.attempt(spec, "4", priority=9)]
        better = [execution.attempt(spec, "1", priority=0)]
        better += [
            execution.attempt(
                spec, "2", priority=5, run_at=late[0].claim.run_at - timedelta(days=1)
            )
        ]
        execution.start(*late)
        execution.start(*better)
        gate.set()
        execution.ended(blocking, *late, *better)
    assert started == [1, 2, 3, 4]


def test_a_context_variable_does_not_reach_the_next_job(jobs, kind):
    leak = contextvars.ContextVar("leak", default="clean")
    seen = []

    def body(ctx, value):
        seen.append(leak.get())
        leak.set("dirty")

    spec = declare(jobs, body, kind)
    with Execution(jobs, limit=1) as execution:
        execution.run(*[execution.attempt(spec) for _ in range(5)])
    assert seen == ["clean"] * 5


def test_an_abandoned_attempt_gives_its_place_away_and_its_result_is_dropped(
    jobs, kind
):
    gate = threading.Event()
    entered = threading.Event()

    def stubborn(ctx, value):
        entered.set()
        gate.wait(10)
        return "late"

    async def stubborn_async(ctx, value):
        entered.set()
        while not gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return "late"

    spec = declare(jobs, stubborn if kind == "sync" else stubborn_async, kind)
    fine = declare(jobs, lambda ctx, value: "next", kind)
    with Execution(jobs, limit=1) as execution:
        stuck, following = execution.attempt(spec), execution.attempt(fine)
        execution.start(stuck, following)
        assert entered.wait(10)
        error = LeaseLostError(stuck.claim.id, 1)
        assert execution.executor.abandon(stuck, error, Mark.STALE)
        assert not execution.executor.abandon(stuck, error, Mark.STALE)
        (outcome,) = execution.ended(following)
        assert execution.attempts.stuck() == [stuck]
        gate.set()
        wait_until(lambda: not execution.attempts.stuck())
        (again,) = execution.run(execution.attempt(fine))
    assert outcome == again == ended.Succeeded('"next"')
    endings = [e.outcome for e in execution.endings if e.claim.id == stuck.claim.id]
    assert endings == [Mark.STALE]


def test_a_cancelled_job_that_lets_the_error_through_is_cancelled(jobs, kind):
    entered = threading.Event()

    def body(ctx, value):
        entered.set()
        wait_until(lambda: ctx.cancelled)
        ctx.raise_if_cancelled()

    async def async_body(ctx, value):
        entered.set()
        await asyncio.sleep(60)

    spec = declare(jobs, body if kind == "sync" else async_body, kind)
    with Execution(jobs) as execution:
        attempt = execution.attempt(spec)
        execution.start(attempt)
        assert entered.wait(10)
        attempt.state.cancel_reason = "customer left"
        attempt.state.cancelled = True
        execution.executor.cancel_task(attempt)
        (outcome,) = execution.ended(attempt)
    assert outcome == ended.Cancelled("customer left")


def test_a_cancelled_job_that_finishes_has_succeeded(jobs):
    def body(ctx, value):
        wait_until(lambda: ctx.cancelled)
        return "done all the same"

    spec = declare(jobs, body, "sync")
    with Execution(jobs) as execution:
        attempt = execution.attempt(spec)
        execution.start(attempt)
        attempt.state.cancelled = True
        (outcome,) = execution.ended(attempt)
    assert outcome == ended.Succeeded('"done all the same"')


def test_an_aborted_error_of_the_handlers_own_is_a_failure(jobs, kind):
    spec = declare(jobs, raising(JobAbortedError("x", None)), kind)
    with Execution(jobs) as execution:
        (outcome,) = execution.run(execution.attempt(spec))
    assert isinstance(outcome, ended.Retry)


class TestAround:
    def test_it_is_entered_for_every_attempt_and_sees_its_errors(self, jobs, kind):
        seen = []

        @contextmanager
        def around(facts):
            try:
                yield
            except BaseException as error:
                seen.append((facts.name, type(error).__name__))
                raise
            else:
                seen.append((facts.name, "fine"))

        fine = declare(jobs, lambda ctx, value: 1, kind)
        fails = declare(jobs, raising(ValueError()), kind)
        with Execution(jobs, limit=1, around=around) as execution:
            execution.run(execution.attempt(fine), execution.attempt(fails))
        assert seen == [(fine.name, "fine"), (fails.name, "ValueError")]

    def test_an_error_it_swallows_is_recorded_all_the_same(self, jobs, kind):
        @contextmanager
        def around(facts):
            with suppress(ValueError):
                yield

        spec = declare(jobs, raising(ValueError("mine")), kind)
        with Execution(jobs, around=around) as execution:
            (outcome,) = execution.run(execution.attempt(spec))
        assert isinstance(outcome, ended.Retry)
        assert outcome.error_type == "ValueError"

    def test_an_error_of_its_own_does_not_hide_the_handlers(self, jobs, kind):
        @contextmanager
        def around(facts):
            try:
                yield
            finally:
                raise RuntimeError("the binding was lost")

        fails = declare(jobs, raising(Snooze("1m")), kind)
        fine = declare(jobs, lambda ctx, value: 1, kind)
        with Execution(jobs, around=around) as execution:
            first, second = execution.run(
                execution.attempt(fails), execution.attempt(fine)
            )
        assert first == ended.Snooze(timedelta(minutes=1))
        assert isinstance(second, ended.Retry)
        assert second.error_type == "RuntimeError"
