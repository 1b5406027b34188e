"""Declaring jobs: what a registry takes, and what it refuses where it is written."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from sqla_jobs import exc
from sqla_jobs.asyncio import AsyncJobContext
from sqla_jobs.declare.context import JobContext, JobFacts
from sqla_jobs.declare.job import DeadJob, Declared, JobSpec
from sqla_jobs.declare.registry import Jobs
from sqla_jobs.declare.retry import Retry, constant
from sqla_jobs.declare.tenant import NO_TENANT

if TYPE_CHECKING:
    from decimal import Decimal


@attrs.frozen
class Order:
    org: int
    id: int


@attrs.frozen
class Receipt:
    no: str


def options(**changed: Any) -> dict[str, Any]:
    """What a job must be given, with *changed* ones."""
    return {
        "input": Order,
        "idempotency_key": lambda order: f"charge:{order.id}",
        "tenant": lambda order: order.org,
        **changed,
    }


def charge(ctx: JobContext, order: Order) -> Receipt:
    return Receipt(str(order.id))


def declared(**changed: Any) -> JobSpec[Any, Any]:
    return Jobs().job("billing.charge", **options(**changed))(charge)


def test_a_decorated_handler_is_the_job_that_workers_find_by_name():
    jobs = Jobs()
    spec = jobs.job("billing.charge", **options(queue="billing"))(charge)
    assert isinstance(spec, JobSpec)
    assert jobs.get("billing.charge") is spec
    assert jobs["billing.charge"] is spec
    assert dict(jobs.specs) == {"billing.charge": spec}
    assert "billing.charge" in jobs
    assert (spec.function, spec.is_async) == (charge, False)
    assert (spec.name, spec.input_type, spec.queue) == (
        "billing.charge",
        Order,
        "billing",
    )


def test_an_unknown_name_is_none_or_an_error_that_names_it():
    assert Jobs().get("x") is None
    with pytest.raises(exc.JobNotDeclaredError, match="'x'"):
        Jobs()["x"]


def test_the_defaults_are_those_of_the_documentation():
    spec = declared()
    assert (spec.queue, spec.priority, spec.on_duplicate) == ("default", 5, "keep")
    assert (spec.timeout, spec.on_dead, spec.retry) == (None, None, Retry())
    assert spec.retain == timedelta(days=7)
    assert spec.retain_dead == timedelta(days=90)
    assert spec.input_codec.limit == spec.output_codec.limit == 256 * 1024


def test_the_registry_gives_defaults_which_a_job_may_change():
    jobs = Jobs(retain="1d", input_limit=100, output_limit=50)
    spec = jobs.job("a", **options())(charge)
    longer = jobs.job("b", **options(retain="100d"))(charge)
    assert (spec.retain, spec.retain_dead) == (timedelta(days=1), timedelta(days=90))
    assert longer.retain == longer.retain_dead == timedelta(days=100)
    assert (spec.input_codec.limit, spec.output_codec.limit) == (100, 50)


def test_key_and_tenant_are_computed_from_the_input_and_checked():
    spec = declared()
    assert spec.idempotency_key(Order(7, 42)) == "charge:42"
    assert spec.tenant_of(Order(7, 42)) == "7"
    assert declared(tenant=NO_TENANT).tenant_of(Order(7, 42)) == ""
    with pytest.raises(exc.IdempotencyKeyRequiredError, match=r"billing\.charge"):
        declared(idempotency_key=lambda order: None).idempotency_key(Order(1, 1))
    with pytest.raises(exc.TenantRequiredError, match=r"billing\.charge"):
        declared(tenant=lambda order: None).tenant_of(Order(1, 1))


@pytest.mark.covers("C16")
def test_c16_a_key_made_of_the_input_sees_typed_values_and_never_json():
    """What differs stays distinct; the order in which a dict was filled is the user's."""
    spec = Jobs().job(
        "j",
        input=dict[str, object],
        idempotency_key=lambda data: repr(sorted(data.items())),
        tenant=NO_TENANT,
    )(lambda ctx, data: None)
    inputs: list[dict[str, object]] = [
        {},
        {"a": None},
        {"a": 1},
        {"a": 1.0},
        {"a": True},
        {"a": "1"},
        {"a": "é"},
        {"a": "e\N{COMBINING ACUTE ACCENT}"},
    ]
    assert len({spec.idempotency_key(data) for data in inputs}) == len(inputs)
    one: dict[str, object] = {"a": 1, "b": 2}
    other: dict[str, object] = {"b": 2, "a": 1}
    assert spec.idempotency_key(one) == spec.idempotency_key(other)


# --- what must be given ---------------------------------------------------------------


@pytest.mark.parametrize("declare", ["job", "declare"])
@pytest.mark.parametrize(
    ("missing", "error"),
    [
        ("idempotency_key", exc.IdempotencyKeyRequiredError),
        ("tenant", exc.TenantRequiredError),
    ],
)
def test_a_missing_key_or_tenant_is_an_error_that_names_the_job_and_the_remedy(
    declare, missing, error
):
    given = options(output=Receipt) if declare == "declare" else options()
    del given[missing]
    with pytest.raises(error, match=rf"billing\.charge.*{missing}") as refused:
        getattr(Jobs(), declare)("billing.charge", **given)
    assert refused.value.job == "billing.charge"
    with pytest.raises(error):
        getattr(Jobs(), declare)("billing.charge", **given, **{missing: None})


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("idempotency_key", "charge", exc.IdempotencyKeyRequiredError),
        ("tenant", "acme", exc.TenantRequiredError),
        ("input", complex, exc.UnsupportedTypeError),
        ("queue", "", exc.InvalidOptionError),
        ("queue", None, exc.InvalidOptionError),
        ("queue", "a\nb", exc.InvalidOptionError),
        ("priority", -1, exc.InvalidOptionError),
        ("priority", 10, exc.InvalidOptionError),
        ("priority", True, exc.InvalidOptionError),
        ("priority", "5", exc.InvalidOptionError),
        ("retry", 3, exc.InvalidOptionError),
        ("retry", None, exc.InvalidOptionError),
        ("timeout", "0s", exc.DurationError),
        ("timeout", "soon", exc.DurationError),
        ("retain", "0s", exc.DurationError),
        ("on_duplicate", "raise", exc.InvalidOptionError),
        ("on_duplicate", ["keep"], exc.InvalidOptionError),
        ("on_dead", charge, exc.InvalidOptionError),
        ("on_dead", declared(), exc.InvalidOptionError),
    ],
    ids=repr,
)
def test_a_bad_option_is_refused_where_it_is_written(option, value, error):
    jobs = Jobs()
    with pytest.raises(error) as refused:
        jobs.job("billing.charge", **options(**{option: value}))
    assert isinstance(refused.value, exc.DeclarationError)
    assert not jobs.specs


@pytest.mark.parametrize(
    "name", ["", " a", "a\x00", "a\tb", "x" * 201, "\ud800", 7, None], ids=ascii
)
def test_a_name_that_cannot_stand_in_tables_and_commands_is_refused(name):
    with pytest.raises(exc.InvalidOptionError, match="name"):
        Jobs().job(name, **options())


@pytest.mark.parametrize(
    "bad", [{"retain": "0s"}, {"input_limit": 0}, {"output_limit": 1.5}], ids=repr
)
def test_a_registry_refuses_bad_options(bad):
    with pytest.raises(exc.DeclarationError, match=next(iter(bad))):
        Jobs(**bad)


def test_a_job_may_be_enqueued_when_another_is_dead():
    jobs = Jobs()
    report = jobs.job(
        "report",
        input=DeadJob,
        idempotency_key=lambda dead: str(dead.job_id),
        tenant=NO_TENANT,
    )(lambda ctx, dead: None)
    spec = jobs.job("billing.charge", **options(on_dead=report))(charge)
    assert spec.on_dead is report
    dead = DeadJob(uuid.UUID(int=1), "billing.charge", "boom")
    assert report.input_codec.decode(report.input_codec.encode(dead)) == dead


# --- names ----------------------------------------------------------------------------


def test_a_name_is_declared_once_and_the_error_tells_both_places():
    jobs = Jobs()
    first = jobs.job("billing.charge", **options())(charge)
    with pytest.raises(exc.JobNameTakenError) as refused:
        jobs.declare("billing.charge", **options(output=Receipt))
    assert refused.value.first == first.declared_at
    assert first.declared_at.startswith(f"{__name__}:")
    assert refused.value.second.startswith(f"{__name__}:")
    assert refused.value.first != refused.value.second
    assert jobs["billing.charge"] is first


# --- handlers -------------------------------------------------------------------------


def test_a_declared_job_gets_its_handler_elsewhere_and_once():
    jobs = Jobs()
    spec = jobs.declare("billing.charge", **options(output=Receipt))
    assert isinstance(spec, Declared)
    assert jobs["billing.charge"] is spec
    assert (spec.function, spec.is_async) == (None, None)

    assert spec.handler(charge) is spec

    assert (spec.function, spec.is_async) == (charge, False)
    with pytest.raises(exc.HandlerError, match="comes second"):
        spec.handler(charge)


async def async_with_sync_context(ctx: JobContext, order: Order) -> None: ...
def sync_with_async_context(ctx: AsyncJobContext, order: Order) -> None: ...
async def async_with_its_context(ctx: AsyncJobContext, order: Order) -> None: ...
async def async_with_facts(ctx: JobFacts, order: Order) -> None: ...
def sync_with_unknown_context(ctx: Decimal, order: Order) -> None: ...
def one_argument(ctx: JobContext) -> None: ...
def keyword_only(ctx: JobContext, *, order: Order) -> None: ...
def three_arguments(ctx: JobContext, order: Order, more: int) -> None: ...
def generator(ctx: JobContext, order: Order) -> Iterator[int]:
    yield 1


class AsyncCallable:
    async def __call__(self, ctx: AsyncJobContext, order: Order) -> None: ...


class SyncCallable:
    def __call__(self, ctx: JobContext, order: Order) -> Receipt:
        return Receipt("")


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (async_with_sync_context, "take AsyncJobContext"),
        (sync_with_async_context, "take JobContext"),
        (generator, "generator"),
        (one_argument, r"\(ctx, input\)"),
        (keyword_only, r"\(ctx, input\)"),
        (three_arguments, r"\(ctx, input\)"),
        (SyncCallable, "not a function"),
        ("charge", "not a function"),
        (None, "not a function"),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_what_cannot_be_a_handler_is_refused_where_it_is_declared(handler, reason):
    """Also when the annotations are strings, as in this module."""
    jobs = Jobs()
    with pytest.raises(exc.HandlerError, match=reason):
        jobs.job("billing.charge", **options())(handler)
    assert not jobs.specs
    spec = jobs.declare("billing.charge", **options(output=Receipt))
    with pytest.raises(exc.HandlerError, match=reason):
        spec.handler(handler)
    assert spec.function is None


@pytest.mark.parametrize(
    ("handler", "is_async"),
    [
        (async_with_its_context, True),
        (async_with_facts, True),
        (sync_with_unknown_context, False),
        (AsyncCallable(), True),
        (SyncCallable(), False),
        (functools.partial(three_arguments, more=1), False),
        (functools.partial(async_with_its_context), True),
        (lambda ctx, order: None, False),
    ],
)
def test_the_kind_of_a_handler_is_found_out(handler, is_async):
    spec = Jobs().job("billing.charge", **options())(handler)
    assert spec.is_async is is_async


def test_a_decorated_function_is_what_its_wrapper_is():
    @functools.wraps(async_with_facts)
    def runs_it(*args: Any) -> None: ...

    @functools.wraps(charge)
    async def awaits_it(*args: Any) -> None: ...

    assert declared_with(runs_it).is_async is False
    with pytest.raises(exc.HandlerError, match="take AsyncJobContext"):
        declared_with(awaits_it)


def declared_with(handler: Any) -> Any:
    return Jobs().job("billing.charge", **options())(handler)


# --- outputs --------------------------------------------------------------------------


def no_annotation(ctx, order): ...
def returns_none(ctx: JobContext, order: Order) -> None: ...
def returns_unknown(ctx: JobContext, order: Order) -> Decimal: ...  # type: ignore[empty-body]  # never called
async def returns_later(ctx: AsyncJobContext, order: Order) -> Later: ...  # type: ignore[empty-body]  # never called


@attrs.frozen
class Later:
    a: int


@contextmanager
def timed() -> Iterator[None]:
    yield


@timed()
def wrapped_elsewhere(ctx: JobContext, order: Order) -> Receipt:
    """A wrapper of another module, which does not know the names of this one."""
    return Receipt("")


@pytest.mark.parametrize(
    ("handler", "type_"),
    [
        (charge, Receipt),
        (wrapped_elsewhere, Receipt),
        (returns_none, type(None)),
        (returns_later, Later),
        (SyncCallable(), Receipt),
        (no_annotation, Any),
        (returns_unknown, Any),
    ],
)
def test_the_output_is_what_the_handler_says_it_returns(handler, type_):
    """What cannot be resolved must be plain JSON values."""
    spec = Jobs().job("billing.charge", **options())(handler)
    assert spec.output_codec.type is type_
    assert spec.output_codec is spec.output_codec


def test_an_output_without_a_type_that_is_no_plain_json_is_refused():
    spec = Jobs().job("billing.charge", **options())(no_annotation)
    assert spec.output_codec.encode({"a": [1]}) == '{"a":[1]}'
    with pytest.raises(exc.PayloadError, match=r"output.*annotate"):
        spec.output_codec.encode(Receipt("1"))


def test_a_declared_output_goes_before_the_annotation():
    jobs = Jobs()
    spec = jobs.declare("a", **options(output=Receipt))
    spec.handler(no_annotation)
    nothing = jobs.declare("b", **options(output=None))
    assert spec.output_codec.type is Receipt
    assert nothing.output_codec.encode(None) == "null"
    with pytest.raises(exc.PayloadError):
        nothing.output_codec.encode(1)


# --- include --------------------------------------------------------------------------


@contextmanager
def lifespan() -> Iterator[Mapping[type, object]]:
    yield {}


@contextmanager
def around(ctx: JobFacts) -> Iterator[None]:
    yield


def test_included_jobs_are_found_also_those_that_are_declared_later():
    app, part, deep = Jobs(), Jobs(retain="2d"), Jobs()
    early = part.job("early", **options())(charge)
    app.include(part)
    part.include(deep)
    late = deep.declare("late", **options(output=Receipt))
    assert set(app.specs) == {"early", "late"}
    assert (app["early"], app["late"]) == (early, late)
    assert app["early"].retain == timedelta(days=2)
    assert set(deep.specs) == {"late"}


def test_a_registry_may_be_included_along_two_ways():
    app, left, right, shared = Jobs(), Jobs(), Jobs(), Jobs()
    for middle in (left, right):
        middle.include(shared)
        app.include(middle)
    spec = shared.job("a", **options())(charge)
    assert app["a"] is spec


def test_names_are_unique_across_included_registries():
    app, part = Jobs(), Jobs()
    app.job("a", **options())(charge)
    part.job("b", **options())(charge)
    part.job("a", **options())(charge)
    with pytest.raises(exc.JobNameTakenError):
        app.include(part)
    assert set(app.specs) == {"a"}
    part.job("c", **options())(charge)
    assert set(app.specs) == {"a"}


def test_a_name_taken_above_is_refused_below_and_registered_nowhere():
    app, part = Jobs(), Jobs()
    app.include(part)
    app.job("a", **options())(charge)
    with pytest.raises(exc.JobNameTakenError):
        part.job("a", **options())(charge)
    assert "a" not in part


@pytest.mark.parametrize(
    "option", [{"lifespan": lifespan}, {"around": around}], ids=repr
)
def test_an_include_never_drops_a_lifespan_or_around(option):
    part: Jobs = Jobs(**option)
    with pytest.raises(exc.InvalidOptionError, match=next(iter(option))):
        Jobs().include(part)
    same: Jobs = Jobs(**option)
    same.include(part)


def test_a_registry_cannot_become_part_of_itself():
    app, part = Jobs(), Jobs()
    app.include(part)
    for inner, outer in ((app, app), (app, part)):
        with pytest.raises(exc.InvalidOptionError, match="part of itself"):
            outer.include(inner)


def test_a_retry_of_the_declaration_decides():
    spec = declared(retry=Retry(attempts=2, backoff=constant("3s")))
    assert spec.retry.decide(ValueError(), 1) == timedelta(seconds=3)
    assert spec.retry.decide(ValueError(), 2) is None
