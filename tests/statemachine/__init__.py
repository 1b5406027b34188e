"""The model of a job's life, and the machine that compares the database with it."""

import pytest

pytest.register_assert_rewrite("tests.statemachine.facts", "tests.statemachine.machine")
