"""The pytest plugin: fixtures, nothing automatic.

pytest loads it by its entry point; ``-p no:sqla_jobs`` leaves it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sqla_jobs.testing.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def sqla_jobs_clock() -> Iterator[Clock]:
    """Freeze the queue's time for this test; ``advance()`` moves it.

    Ask for it before anything is enqueued: jobs that were written by a clock that runs
    ahead of this machine's would not be due.
    """
    with Clock() as clock:
        yield clock
