"""The body of a process that a test starts: ``python -m tests.support.child``.

Arguments: ``module:function`` and a JSON list of its arguments. The parent holds our
standard input; when it closes, the test is over (or killed) and so are we.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading


def main() -> None:
    """Run the function that the command line names."""
    name, arguments = sys.argv[1:3]
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    module, _, function = name.partition(":")
    getattr(importlib.import_module(module), function)(*json.loads(arguments))


def _end_with_parent() -> None:
    # os.read, not sys.stdin: a thread blocked in a buffered reader holds its lock
    # when the interpreter ends, and that is a fatal error.
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
