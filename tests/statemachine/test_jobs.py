"""T67: a random walk through everything that can happen, checked after each step.

``SQLA_JOBS_EXAMPLES=2000`` in the environment makes it a long one.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from sqla_jobs import clock
from tests.statemachine.machine import Machine

EXAMPLES = int(os.environ.get("SQLA_JOBS_EXAMPLES", "80"))
STEPS = 50


@pytest.fixture(autouse=True)
def thawed():
    yield
    clock.thaw()


@pytest.mark.each_kind
@pytest.mark.covers("T67")
@pytest.mark.timeout(600 + EXAMPLES)  # A failure is made small, which takes its time.
def test_jobs_do_what_the_model_says(engine):
    machine = type("Machine", (Machine,), {"engine": engine})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
