"""Pages of the commands that need no more than their parser says: usage, help, arguments, options, examples."""

import re
from collections.abc import Iterator
from inspect import cleandoc
from types import ModuleType
from typing import Any

import typer

from headrace.cli import app, parquet, rows
from tools.reference.command_page import _options, _records
from tools.reference.markdown import fenced, page, table

OWN_PAGES = frozenset({"explain", "node"})
SOURCE = "src/headrace/cli"


def plain_command_pages() -> dict[str, str]:
    """A page for each command that has none of its own, by its path under docs/."""
    group: Any = typer.main.get_command(app)
    shared = ["Options of `headrace` itself:", _options(_records(group, "headrace"))]
    return {
        f"reference/{name}.md": page(
            f"headrace {name}",
            SOURCE,
            *_parts(command, f"headrace {name}", "##"),
            *(_documents() if name == "load" else ()),
            *shared,
        )
        for name, command in group.commands.items()
        if name not in OWN_PAGES
    }


def _documents() -> Iterator[str]:
    """What becomes of a row, as the modules that read rows say on top."""
    yield "## What a document is"
    yield table(["file", "what a row becomes"], _told(rows))
    yield "Of a Parquet file it is an object of the columns, and its place is the row, from 1. Their values:"
    yield table(["in Parquet", "in JSON"], _told(parquet))


def _told(module: ModuleType) -> list[list[str]]:
    """The lines of two columns in a module's docstring."""
    found = re.findall(r"^    (\S.*?) {2,}(\S.*)$", module.__doc__ or "", re.MULTILINE)
    assert found, f"{module.__name__} does not say what becomes of a row"
    return [list(each) for each in found]


def _parts(command: Any, name: str, mark: str) -> Iterator[str]:
    yield fenced(command.get_usage(typer.Context(command, info_name=name)).removeprefix("Usage: "))
    yield cleandoc(command.help)
    records = _records(command, name)
    arguments = [[f"`{each.split()[0].strip('[]')}`", text] for kind, each, text in records if kind == "argument"]
    if arguments:
        yield f"{mark} Arguments"
        yield table(["argument", "what it is"], arguments)
    yield f"{mark} Options"
    yield _options(records)
    examples = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    if examples:
        yield f"{mark} Examples"
        yield fenced("\n".join(examples), "sh")
    for part, inner in getattr(command, "commands", {}).items():
        yield f"{mark} {name} {part}"
        yield from _parts(inner, f"{name} {part}", f"{mark}#")
