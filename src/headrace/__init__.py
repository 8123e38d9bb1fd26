"""headrace: change streams of the memcached/Couchbase family, both ends.

    with headrace.Node() as node:      a node inside a program, see headrace.node
        ...

What the package is made of, low to high, stands in `docs/architecture.md`; import the rest from the subpackages, e.g.
`headrace.wire`. Names are imported when they are first asked for: a Spark executor needs no node.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.node import AsyncNode, Node, NodeOptions

__all__ = ["AsyncNode", "Node", "NodeOptions", "__version__"]

__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> Any:
    if name not in {"AsyncNode", "Node", "NodeOptions"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("headrace.node"), name)
