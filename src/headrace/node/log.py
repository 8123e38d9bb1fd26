"""Structured logs: one line an event on stderr, as text for people or as JSON for machines.

An event is a sentence that is always the same, and fields that say which: `log.info("logged in", extra={...})`.
No field ever holds a password or a value of an item.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from headrace.errors import HeadraceError

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
LEVELS = ("debug", "info", "warning", "error")
FORMS = ("text", "json")


class LogError(HeadraceError):
    """Logs cannot be written as asked."""


class EventFormatter(logging.Formatter):
    """Spells an event and its fields."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        if self._as_json:
            event = {"at": at, "level": record.levelname.lower(), "logger": record.name, "event": record.getMessage()}
            return json.dumps(event | fields, default=str)
        told = "".join(f" {name}={_spelled(value)}" for name, value in fields.items())
        return f"{at} {record.levelname.lower():7} {record.getMessage()}{told}"


def _spelled(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(char.isspace() or not char.isprintable() for char in text) else text


def set_up_logging(*, level: str, form: str) -> None:
    """Send headrace's own events to stderr."""
    if level not in LEVELS:
        raise LogError(f"{level!r} is no log level: {', '.join(LEVELS)}")
    if form not in FORMS:
        raise LogError(f"{form!r} is no log format: {', '.join(FORMS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventFormatter(as_json=form == "json"))
    logger = logging.getLogger("headrace")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
