"""The command ``sqla-jobs``: run workers, look at jobs, steer them.

Exit codes: 0 fine, 1 refused or not found (one sentence on stderr says why), 2 usage.
"""

from sqla_jobs.cli.root import main

__all__ = ["main"]
