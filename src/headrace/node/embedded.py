"""A node inside a Python program: it runs in a thread of its own, with its own event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, Self

import uvloop

from headrace.node.cluster_config import Address
from headrace.node.server import AsyncNode, NodeOptions


class Node:
    """A node for as long as a `with` lasts. It takes what `NodeOptions` takes; the port is a free one by default.

    >>> with Node(vbuckets=4) as node:
    ...     node.connection_string.startswith("couchbase://127.0.0.1:")
    True
    """

    def __init__(self, *, port: int = 0, data: str | Path | None = None, **options: Any) -> None:
        self.options = NodeOptions(port=port, data=Path(data) if data is not None else None, **options)
        self._thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop
        """Where the node runs: its state may be touched there and nowhere else."""
        self.running: AsyncNode
        self._stop: asyncio.Event
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._address = Address(host=self.options.host, port=port)

    @property
    def host(self) -> str:
        """The host that the node listens on."""
        return self._address.host

    @property
    def port(self) -> int:
        """The port that the node listens on."""
        return self._address.port

    @property
    def http_port(self) -> int | None:
        """The port for HTTP; None without `http`."""
        return self._address.http_port

    @property
    def connection_string(self) -> str:
        """What clients and Spark's option `connection` take."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'couchbases' if self._address.tls else 'couchbase'}://{host}:{self.port}"

    def start(self) -> None:
        """Start the node and wait until it serves."""
        self._started.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="headrace-node", daemon=True)
        self._thread.start()
        self._started.wait()
        self._raise_failure()

    def stop(self) -> None:
        """Stop the node, with everything on disk."""
        if self._thread is not None and self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._thread = None
        self._raise_failure()

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
