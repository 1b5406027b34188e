"""Hints inside one process, for databases that cannot carry them.

A commit tells the workers of its own process that there is something to claim; workers
of other processes see that the file has changed (:mod:`sqla_jobs.worker.lookout`).
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import Engine

    Hear = Callable[[Collection[str]], None]

_lock: Final = threading.Lock()
_listening: Final[dict[str, list[Hear]]] = {}


def listen(engine: Engine, hear: Hear) -> Callable[[], None]:
    """Call *hear* with the queues of every hint for *engine*'s file; return its end."""
    place = _place(engine)
    with _lock:
        _listening.setdefault(place, []).append(hear)

    def end() -> None:
        with _lock:
            hearing = _listening.get(place, [])
            if hear in hearing:
                hearing.remove(hear)
            if not hearing:
                _listening.pop(place, None)

    return end


def is_heard(engine: Engine) -> bool:
    """Whether a worker of this process listens to *engine*'s file."""
    return bool(_listening) and _place(engine) in _listening


def hint(engine: Engine, queues: Collection[str]) -> None:
    """Tell the workers of this process that *queues* have work."""
    with _lock:
        hearing = list(_listening.get(_place(engine), ()))
    for hear in hearing:
        hear(queues)


def _place(engine: Engine) -> str:
    """Return what is the same for every engine on one file."""
    path = (engine.url.database or "").removeprefix("file:").partition("?")[0]
    return os.path.realpath(path)


def _forget() -> None:
    # The child of a fork: its parent's workers stay there.
    _listening.clear()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=_forget,
    )
