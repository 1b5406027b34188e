"""How the worker's command logs: one event, one line, with the job that it is about."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

FORMATS: Final = ("text", "json")
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FACTS: Final = ("job_name", "job_id", "attempt", "tenant")
"""What records of a job carry, as attributes."""


def set_up(level: str, kind: str) -> None:
    """Log to stderr, unless the application has set logging up itself."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    found = {name: getattr(record, name, None) for name in FACTS}
    return {name: value for name, value in found.items() if value is not None}


class TextFormatter(logging.Formatter):
    """Lines for people, with the job's facts after the message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line, without a traceback."""
        line = super().formatMessage(record)
        facts = " ".join(f"{name}={value}" for name, value in _facts(record).items())
        return f"{line} [{facts}]" if facts else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object; a traceback is a string in it, under ``error``."""
        told = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **_facts(record),
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)
