"""What is shipped for those who test things that speak TAP, UPR or DCP, ourselves among them.

    Chaos       trouble on purpose at a node: failovers, rollbacks, slow and cut streams
    LiveNode    a node with ways to fill it, and its `chaos`
    fixtures    the same for pytest: `headrace_node`
    link        joins two ends of a stream connection in memory: pieces, delays, cuts
    sim         whole nodes, their disks and their consumers in one thread, decided by one seed

Names are imported when they are first asked for: `Chaos` needs no node here, and nothing but `fixtures` needs pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.chaos import Chaos, GoneBack
    from headrace.testing.live import LiveNode, Written

__all__ = ["Chaos", "GoneBack", "LiveNode", "Written"]

_HOMES = {"Chaos": "chaos", "GoneBack": "chaos", "LiveNode": "live", "Written": "live"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
