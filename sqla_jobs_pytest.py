"""The pytest plugin: fixtures, nothing automatic; ``-p no:sqla_jobs`` leaves it out.

pytest loads it by its entry point in every suite of an environment that has sqla_jobs,
so it stands beside the package and imports it only for the tests that ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqla_jobs.testing import Clock


@pytest.fixture
def sqla_jobs_clock() -> Iterator[Clock]:
    """Freeze the queue's time for this test; ``advance()`` moves it.

    Ask for it before anything is enqueued: jobs that were written by a clock that runs
    ahead of this machine's would not be due.
    """
    from sqla_jobs.testing import Clock  # noqa: PLC0415 - see the module

    with Clock() as clock:
        yield clock
