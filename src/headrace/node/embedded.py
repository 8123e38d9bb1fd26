"""A node inside a Python program: it runs in a thread of its own, with its own event loop.

A program may end without stopping its node. The disk is a moment behind what the node acknowledged, so each node that
still runs is stopped when the interpreter ends.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - what it registers for the end must be there before ours: see below
import contextlib
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Self

import uvloop

from headrace.node.options import NodeError, NodeKeywords, NodeOptions, Reachable, host_and_port
from headrace.node.server import AsyncNode

if TYPE_CHECKING:
    from typing import Unpack

log = logging.getLogger("headrace.node")


class Node(Reachable):
    """A node for as long as a `with` lasts, in a thread of its own.

    It takes the fields of `NodeOptions` by name, and then a free port by default; or `NodeOptions` ready-made.

    >>> with Node(vbuckets=4) as node:
    ...     node.connection_string.startswith("couchbase://127.0.0.1:")
    True

    Without a `with`, `start` and `stop` do the same; a node that nobody stopped is stopped when the program ends.
    """

    def __init__(self, options: NodeOptions | None = None, /, **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(options, **keywords)
        self._thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop
        """Where the node runs: its state may be touched there and nowhere else."""
        self.running: AsyncNode
        self._stop: asyncio.Event
        self._started = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start the node and wait until it serves."""
        if self._thread is not None and self._thread.is_alive():
            raise NodeError(f"the node runs already, on {host_and_port(self.host, self.port)}")
        self._started.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="headrace-node", daemon=True)
        self._thread.start()
        _RUNNING.add(self)
        self._started.wait()
        if self._has_failed():
            self._thread.join()
            self._thread = None
            self._raise_failure()

    def stop(self) -> None:
        """Stop the node, with everything on disk; raise a HeadraceError when that cannot be. Twice does no harm."""
        if self._thread is not None and self._thread.is_alive():
            self._started.wait()
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself
                self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._thread = None
        _RUNNING.discard(self)
        self._raise_failure()

    def _has_failed(self) -> bool:
        return self._failure is not None

    def _raise_failure(self) -> None:
        """What ended the thread is for who started it."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - whatever it is, who started the node is told
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with AsyncNode(self.options) as node:
            self.running = node
            self._address = node.address
            self._started.set()
            await self._stop.wait()


_RUNNING: weakref.WeakSet[Node] = weakref.WeakSet()
"""A node that runs is held by its thread."""


def _stop_all() -> None:
    for node in list(_RUNNING):
        try:
            node.stop()
        except Exception:
            log.exception("a node that ran to the end of the program could not be stopped cleanly")


# A node that stops still uses thread pools, which take no work from the time on when concurrent.futures was told of the
# end. It is told by threading, before atexit is, last registered first; there is no public name for that.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
