"""The node: durable vbuckets behind the memcached binary protocol.

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

if TYPE_CHECKING:
    from headrace.node.embedded import Node
    from headrace.node.limits import NodeLimits
    from headrace.node.server import AsyncNode, NodeError, NodeOptions

__all__ = ["AsyncNode", "Node", "NodeError", "NodeLimits", "NodeOptions"]

_HOMES = {
    "AsyncNode": "server",
    "Node": "embedded",
    "NodeError": "server",
    "NodeLimits": "limits",
    "NodeOptions": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
