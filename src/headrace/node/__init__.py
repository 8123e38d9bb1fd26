"""The node: durable vbuckets behind the memcached binary protocol.

options, tls            how a node is started, and what it is refused for
server, embedded        a node in an event loop; in a thread, for a `with`
connection, session     one client: its bytes; what is known of it
hot, dispatch, commands requests: the two that make up the load; all others, by the catalogue
bucket, vbucket         items in memory, and the one way in which they change
flusher, pager, disk    memory to disk in groups; what goes by time; the files
users, sasl             who may do what
stats, metrics, http    what can be seen from outside
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.node.extra import ExtraMissingError, needs_extra

if TYPE_CHECKING:
    from headrace.node.embedded import Node
    from headrace.node.limits import NodeLimits
    from headrace.node.options import NodeError, NodeOptions
    from headrace.node.server import AsyncNode

__all__ = ["AsyncNode", "ExtraMissingError", "Node", "NodeError", "NodeLimits", "NodeOptions"]

_HOMES = {
    "AsyncNode": "server",
    "Node": "embedded",
    "NodeError": "options",
    "NodeLimits": "limits",
    "NodeOptions": "options",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_extra():
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
