"""Pages of the commands that need no more than their parser says: usage, help, arguments, options, examples."""

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

import typer

from headrace.cli import app
from tools.reference.command_page import _options, _records
from tools.reference.markdown import fenced, page, table

OWN_PAGES = frozenset({"explain", "node"})
SOURCE = "src/headrace/cli"


def plain_command_pages() -> dict[str, str]:
    """A page for each command that has none of its own, by its path under docs/."""
    group: Any = typer.main.get_command(app)
    shared = ["Options of `headrace` itself:", _options(_records(group, "headrace"))]
    return {
        f"reference/{name}.md": page(f"headrace {name}", SOURCE, *_parts(command, f"headrace {name}", "##"), *shared)
        for name, command in group.commands.items()
        if name not in OWN_PAGES
    }


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
