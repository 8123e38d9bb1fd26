"""The page of all numbers with names."""

import inspect
from collections.abc import Iterator
from enum import IntEnum, IntFlag

from headrace.wire import codes
from headrace.wire.codes import Datatype, Magic, Status, words
from headrace.wire.fields import Names
from headrace.wire.registry import RESPONSES
from tools.reference.dialect_pages import ENTRIES
from tools.reference.markdown import anchor, link, page, table
from tools.reference.messages import request_link, title

SOURCE = "src/headrace/wire/codes.py"
_IN_HEADER: dict[Names, str] = {Magic: "Magic", Status: "Status", Datatype: "Data type"}


def enums() -> list[Names]:
    """Every enum of codes.py, in the order of the file."""
    return [
        found
        for found in vars(codes).values()
        if isinstance(found, type) and issubclass(found, IntEnum | IntFlag) and found.__module__ == codes.__name__
    ]


def codes_page() -> str:
    """docs/protocol/codes.md."""
    return page(
        "Codes",
        SOURCE,
        "Numbers that have names. Messages hold plain integers, so a number without a name is no error. Of flags, "
        "several may be set.",
        ", ".join(link(found.__name__, f"#{anchor(found.__name__)}") for found in enums()),
        *(_section(found) for found in enums()),
    )


def _section(found: Names) -> str:
    kind = "flags" if issubclass(found, IntFlag) else "number"
    digits = max(2, len(f"{max(found):x}"))
    rows = ([f"0x{code:0{digits}x}", str(int(code)), f"`{code.name}`", words(code.name or "")] for code in found)
    parts = [f"## {found.__name__}", inspect.cleandoc(found.__doc__ or ""), f"In: {', '.join(_users(found))}."]
    return "\n\n".join([*parts, table([kind, "decimal", "name in Python", "in explain"], rows)])


def _users(found: Names) -> Iterator[str]:
    """Where the enum's numbers stand."""
    if found in _IN_HEADER:
        yield f"*{_IN_HEADER[found]}* of the {link('header', 'header.md')}"
    for cls in (*ENTRIES, *RESPONSES):
        for spec in cls.spec.fields.values():
            if any(spec.names_in(dialect) is found for dialect in cls.spec.dialects if spec.names):
                there = request_link(cls.spec) if cls.spec.opcodes else _response(title(cls.spec))
                yield f"*{spec.label}* of {there}"
                break


def _response(name: str) -> str:
    return link(name.lower(), f"responses.md#{anchor(name)}")
