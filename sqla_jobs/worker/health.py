"""Health over HTTP, for whoever starts and routes processes: ``/live`` and ``/ready``.

``/live`` says whether the process is worth keeping: its heartbeat's loop turns. A
database that is away does not make it unfit: another process would fare no better, and
this one goes on by itself. ``/ready`` says whether jobs are being claimed: the lease
holds, the database answered lately, nobody has asked for a stop.

The answers hold no names of jobs, hosts or databases, and nothing can be asked for.
"""

from __future__ import annotations

import json
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from sqla_jobs.exc import WorkerConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqla_jobs.worker.engine import Parts

LIMIT: Final = 5.0
"""Seconds that one request may take to be sent."""


class Health:
    """Answers on a port of its own, from its making until :meth:`close`."""

    def __init__(self, parts: Parts, host: str, port: int) -> None:
        """Listen; raises :exc:`.WorkerConfigError` when that is not possible.

        :param port: 0 takes any that is free: :attr:`port` tells which.
        """
        self._parts = parts
        handler = type("_Bound", (_Handler,), {"health": self})
        try:
            self._server = _Server((host, port), handler)
        except (OSError, OverflowError) as error:
            raise WorkerConfigError(
                f"Health cannot be served at {host}:{port} ({error})",
                "give another health_port=, or health_host=",
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="sqla-jobs-health", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()

    def facts(self) -> dict[str, Any]:
        """Return what is told, for both questions; seconds are ages."""
        parts = self._parts
        now = time.monotonic()
        lease = parts.heartbeat.lease
        ttl = parts.config.lease_ttl
        turned, answered = parts.heartbeat.turned_at, parts.heartbeat.worked_at
        valid = lease is not None and lease.valid
        stopping = parts.claimer.stopping
        return {
            "live": now - turned < ttl,
            "ready": valid
            and not stopping
            and not parts.claimer.failing
            and now - answered < ttl,
            "lease_valid": valid,
            "stopping": stopping,
            "heartbeat_age": round(now - turned, 1),
            "database_age": round(now - answered, 1),
            "listening": parts.listener.healthy(),
            "running": len(parts.attempts),
            "stuck": parts.stuck,
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    health: Health
    timeout = LIMIT
    server_version = "sqla-jobs"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer 200 or 503, with the facts."""
        question = self.path.partition("?")[0].strip("/")
        if question not in ("live", "ready"):
            self._answer(HTTPStatus.NOT_FOUND, {"ask": ["/live", "/ready"]})
            return
        facts = self.health.facts()
        good = facts[question]
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        self._answer(status, facts)

    do_HEAD = do_GET  # noqa: N815 - as above

    def _answer(self, status: HTTPStatus, facts: Mapping[str, Any]) -> None:
        body = json.dumps(facts).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a probe every few seconds is no event."""
