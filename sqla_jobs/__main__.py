"""``python -m sqla_jobs``: the same as the command ``sqla-jobs``."""

import sys

from sqla_jobs.cli import main

if __name__ == "__main__":
    sys.exit(main())
