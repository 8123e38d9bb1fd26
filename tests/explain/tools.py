"""Ways to run `explain` in tests: over events, and as a command."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from headrace.cli import app
from headrace.explain import Explained, Fault, Note, explain, read_inputs
from headrace.explain.messages import Shown
from headrace.wire import Dialect


def shown(data: bytes, *, port: int | None = None, dialect: Dialect | None = None) -> list[Shown]:
    """Explain an input that comes through standard input."""
    return list(explain(read_inputs(["-"], port=port, standard_input=io.BytesIO(data)), dialect))


def messages(data: bytes, *, port: int | None = None, dialect: Dialect | None = None) -> list[Explained]:
    """Return only the messages of an input."""
    return [each for each in shown(data, port=port, dialect=dialect) if isinstance(each, Explained)]


def names(explained: Iterable[Explained]) -> list[str]:
    """Return what the messages are called."""
    return [each.message for each in explained]


def texts(found: Iterable[Shown]) -> list[str]:
    """Return the words of notes and faults."""
    return [each.text for each in found if isinstance(each, Note | Fault)]


def run(*arguments: str | Path, data: bytes | None = None) -> Result:
    """Run `headrace explain` in this process."""
    return CliRunner().invoke(app, ["explain", *map(str, arguments)], input=data)


def json_lines(result: Result) -> list[dict[str, Any]]:
    """Read what a run printed as JSON."""
    return [json.loads(line) for line in result.stdout.splitlines()]
