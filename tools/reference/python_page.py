"""docs/reference/python.md: the classes with which a program runs a node and talks to one, from their docstrings."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from functools import cached_property
from typing import Any

from headrace.client import (
    AsyncBatchReader,
    AsyncChangeReader,
    BatchReader,
    Change,
    ChangeOptions,
    ChangeReader,
    KvConnection,
    OnRollback,
    Positions,
    RolledBack,
    SnapshotMarked,
    StreamEnded,
    StreamStarted,
    TapInterrupted,
    TapReader,
)
from headrace.node import AsyncNode, Node, NodeLimits, NodeOptions
from headrace.node.options import Reachable
from tools.reference.attributes import field_sentences
from tools.reference.markdown import fenced, page, table

SOURCE = "the docstrings in src/headrace/node and src/headrace/client"
_START = {
    Node: "with headrace.Node(vbuckets=64) as node:",
    AsyncNode: "async with headrace.AsyncNode(vbuckets=64) as node:",
}


def python_page() -> str:
    """The whole page."""
    return page(
        "Python: a node, a connection to one, and its changes",
        SOURCE,
        "`headrace.Node`, `headrace.AsyncNode` and `headrace.NodeOptions` need the extra `node`; without it they raise "
        "an `ImportError` that says what to install. `headrace.client` is in the base package. A wrong option is a "
        "`headrace.node.NodeError`; it and every other error here is a `headrace.errors.HeadraceError`. To do: [run a "
        "node](../guides/run-a-node.md#inside-a-python-program), [follow changes](../guides/follow-changes.md).",
        *_node_parts(Node),
        *_node_parts(AsyncNode),
        *_option_parts(),
        *_connection_parts(),
        *_reader_parts(),
    )


def _node_parts(cls: type[Reachable]) -> Iterator[str]:
    yield f"## {cls.__name__}"
    yield fenced(_START[cls], "text")
    yield _prose(cls)
    yield _attributes(cls)
    yield from _methods(cls)


def _option_parts() -> Iterator[str]:
    sentences = field_sentences(NodeOptions)
    names = {field.name for field in fields(NodeOptions)}
    assert names == set(sentences), f"an option without a sentence, or a sentence without: {names ^ set(sentences)}"
    yield f"## {NodeOptions.__name__}"
    yield _prose(NodeOptions)
    rows = ([f"`{each.name}`", _default(each), sentences[each.name]] for each in fields(NodeOptions))
    yield table(["field", "default", "what it is"], rows)
    yield f"`{NodeLimits.__name__}` has its fields in [headrace node](node.md#limits)."


def _connection_parts() -> Iterator[str]:
    yield f"## {KvConnection.__name__}"
    yield fenced(_signature(KvConnection, KvConnection.__name__), "text")
    yield _prose(KvConnection)
    yield from _methods(KvConnection)


def _reader_parts() -> Iterator[str]:
    """The readers of changes: what they are told, what they do, what they give."""
    sentences = field_sentences(ChangeOptions)
    names = {field.name for field in fields(ChangeOptions)}
    assert names == set(sentences), f"an option without a sentence, or a sentence without: {names ^ set(sentences)}"
    yield f"## {ChangeOptions.__name__}"
    yield _prose(ChangeOptions)
    rows = ([f"`{each.name}`", _told_default(each), sentences[each.name]] for each in fields(ChangeOptions))
    yield table(["field", "default", "what it is"], rows)
    yield f"`{OnRollback.__name__}`:"
    told = field_sentences(OnRollback)
    yield table(["value", "what it means"], ([f"`{each.value}`", told[each.name]] for each in OnRollback))
    for cls in (BatchReader, ChangeReader, AsyncBatchReader, AsyncChangeReader, TapReader):
        yield f"## {cls.__name__}"
        yield fenced(_signature(cls, cls.__name__), "text")
        yield _prose(cls)
        yield _attributes(cls)
        yield from _methods(cls)
    yield f"## {Positions.__name__}"
    yield _prose(Positions)
    yield from _methods(Positions)
    yield "## What readers give"
    gives = (Change, SnapshotMarked, StreamStarted, StreamEnded, RolledBack, TapInterrupted)
    yield table(
        ["class", "fields", "what it tells"],
        ([f"`{each.__name__}`", ", ".join(f"`{name}`" for name in _names(each)), _first(each)] for each in gives),
    )


def _names(cls: Any) -> list[str]:
    return list(cls._fields) if hasattr(cls, "_fields") else [each.name for each in fields(cls)]


def _first(cls: type) -> str:
    return " ".join(_prose(cls).split("\n\n")[0].split())


def _told_default(field: "Field[Any]") -> str:
    return f"`{getattr(field.default, 'value', field.default)!r}`"


def _default(field: "Field[Any]") -> str:
    return f"`{field.default!r}`" if field.default is not MISSING else f"`{NodeLimits.__name__}()`"


def _prose(thing: object) -> str:
    """A docstring without its examples: those are run as tests where they stand, and the guides have others."""
    paragraphs = inspect.cleandoc(thing.__doc__ or "").split("\n\n")
    return "\n\n".join(paragraph for paragraph in paragraphs if not paragraph.startswith(">>>"))


def _public(cls: type) -> Iterator[tuple[str, Any]]:
    seen: dict[str, Any] = {}
    for each in reversed(cls.__mro__[:-1]):
        seen.update(vars(each))
    return ((name, found) for name, found in seen.items() if not name.startswith("_"))


def _attributes(cls: type) -> str:
    rows = (
        [f"`{name}`", _prose(found)] for name, found in _public(cls) if isinstance(found, property | cached_property)
    )
    return table(["attribute", "what it is"], rows)


def _methods(cls: type) -> Iterator[str]:
    for name, found in _public(cls):
        if inspect.isfunction(found):
            assert found.__doc__, f"{cls.__name__}.{name} has no docstring"
            yield f"### {cls.__name__}.{name}"
            yield fenced(_signature(found, name), "text")
            yield _prose(found)


def _signature(call: Callable[..., Any], name: str) -> str:
    told = inspect.signature(call)
    without_self = told.replace(parameters=[each for each in told.parameters.values() if each.name != "self"])
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(without_self)).removesuffix(" -> None")
    return f"{'await ' * inspect.iscoroutinefunction(call)}{name}{text}"
