"""One job for people: its facts, its attempts, its payloads."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Final

from rich.text import Text

from sqla_jobs.cli import tables
from sqla_jobs.inspect.groups import normalised
from sqla_jobs.inspect.trace import UNDECLARED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqla_jobs.inspect import AttemptTrace, JobTrace

ERRORS_SHOWN: Final = 3


def print_trace(trace: JobTrace) -> None:
    """Print all that is known about a job."""
    out = tables.console()
    out.print(tables.facts(_facts(trace)))
    out.print()
    if trace.attempts:
        out.print(_attempts(trace))
        _print_errors(trace)
    else:
        out.print(Text("No attempt has ended yet.", style="dim"))
    if trace.input_hidden == trace.output_hidden == UNDECLARED:
        text = "input and output are shown when --app names the declaration"
        out.print(Text(f"\n{text}, which knows the sensitive fields.", style="dim"))
        return
    for name, value, hidden in (
        ("input", trace.input, trace.input_hidden),
        ("output", trace.output, trace.output_hidden),
    ):
        out.print()
        out.print(Text(name, style="bold"))
        if hidden is not None:
            out.print(Text(f"not shown: {hidden}", style="dim"))
        else:
            shown = json.dumps(value, indent=2, ensure_ascii=False)
            out.print(Text(tables.visible(shown, lines=True)))


def _facts(trace: JobTrace) -> Iterator[tuple[str, Text | str]]:
    yield "id", str(trace.id)
    yield "state", tables.state(trace.state)
    yield "attempts", f"{trace.attempt} of {trace.max_attempts}"
    yield "job", trace.name
    yield "key", trace.key
    yield "tenant", "none" if trace.tenant is None else trace.tenant
    yield "queue", f"{trace.queue}, priority {trace.priority}"
    yield "enqueued", _with_age(trace, "created_at")
    if trace.enqueued_by is not None:
        yield "by", trace.enqueued_by
    if trace.next_run_in is not None:
        yield "runs", _with_age(trace, "run_at")
    if trace.attempted_at is not None:
        yield "last started", _with_age(trace, "attempted_at")
    if trace.deadline_at is not None and trace.finished_at is None:
        yield "deadline", _with_age(trace, "deadline_at")
    if trace.finished_at is not None:
        yield "finished", _with_age(trace, "finished_at")
    if trace.cancel_requested_at is not None:
        yield "cancel asked", _with_age(trace, "cancel_requested_at")
    if trace.cancel_reason is not None:
        yield "reason", trace.cancel_reason
    if trace.rerun:
        yield "rerun", "one more run after this one"
    if trace.retry_delays:
        waits = ", ".join(map(tables.span, trace.retry_delays))
        yield "retries after", f"{waits} (at most)"
    if trace.traceparent is not None:
        yield "traceparent", trace.traceparent
    yield "fence", str(trace.fence)


def _with_age(trace: JobTrace, field: str) -> str:
    at = getattr(trace, field)
    return f"{tables.moment(at)} ({tables.relative(at, trace.seen_at, 2)})"


def _attempts(trace: JobTrace) -> object:
    made = tables.table("#", "outcome", "started", "took", "worker")
    for attempt in trace.attempts:
        end = attempt.ended_at or trace.seen_at
        took = tables.span(end - attempt.started_at) if attempt.started_at else "-"
        made.add_row(
            str(attempt.number),
            tables.cell(attempt.outcome, "" if attempt.error_type is None else "red"),
            tables.moment(attempt.started_at),
            took,
            tables.cell(attempt.worker or "-"),
        )
    return made


def _print_errors(trace: JobTrace) -> None:
    """Print the last errors; those that differ in numbers alone are told once."""
    failed = [a for a in trace.attempts if a.error_type or a.error]
    causes = [
        list(alike)
        for _, alike in groupby(
            failed, lambda a: (a.error_type, normalised(a.error or ""))
        )
    ]
    for alike in causes[-ERRORS_SHOWN:]:
        first, last = alike[0], alike[-1]
        which = f"attempt {last.number}"
        if first is not last:
            which = f"attempts {first.number} to {last.number}, the last one"
        _print_error(which, last)
    if len(causes) > ERRORS_SHOWN:
        tables.console().print(Text("\nEarlier errors: see --json.", style="dim"))


def _print_error(which: str, attempt: AttemptTrace) -> None:
    out = tables.console()
    kind = tables.visible(attempt.error_type or "error")
    out.print()
    out.print(Text(f"{which}: {kind}", style="red"))
    if attempt.error:
        out.print(Text(tables.visible(attempt.error, lines=True)))
