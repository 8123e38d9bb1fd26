"""Our node in the place of the captured server: in this process where that does, a process of its own to be killed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Protocol

from headrace.ids import VBucketId
from headrace.node import Node
from headrace.wire.catalogue import Done, GetAllVBSeqnos, SeqnoPersistence, Seqnos
from tests.node.talk import Talk, on_loop
from tests.processes import start_node

VBUCKETS = 16
"""Vbucket 60, which the captures take for one that is missing, is missing then."""


class Served(Protocol):
    """A node that a capture is played against."""

    @property
    def host(self) -> str:
        """Where it listens."""

    @property
    def port(self) -> int:
        """Where it listens."""

    def restart(self) -> None:
        """Stop cleanly and start again on the same data."""

    def kill(self) -> None:
        """End it as a crash would."""

    def start(self) -> None:
        """Start it again after a kill."""

    def expire(self) -> None:
        """Let the expiry pager run now."""

    def close(self) -> None:
        """End it, and remove its data."""


class Embedded:
    """A node in this process: quick, and its pager need not be waited for."""

    def __init__(self, vbuckets: int = VBUCKETS) -> None:
        self._data = tempfile.TemporaryDirectory(prefix="headrace-replay-")
        self._node = Node(vbuckets=vbuckets, data=self._data.name)
        self._node.start()

    @property
    def host(self) -> str:
        """Where it listens."""
        return self._node.host

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._node.port

    def restart(self) -> None:
        """Stop cleanly and start again on the same data."""
        self._node.stop()
        self._node.start()

    def kill(self) -> None:
        """A node of this process cannot be killed alone."""
        raise NotImplementedError

    def start(self) -> None:
        """See `kill`."""
        raise NotImplementedError

    def expire(self) -> None:
        """Let the expiry pager run now."""
        opened: Any = self._node.running.services.buckets.get("default")
        on_loop(self._node, opened.pager.expire)

    def close(self) -> None:
        """End it, and remove its data."""
        self._node.stop()
        self._data.cleanup()


class Process:
    """A node as a process of its own."""

    def __init__(self) -> None:
        self._data = tempfile.TemporaryDirectory(prefix="headrace-replay-")
        self._server = start_node("--vbuckets", str(VBUCKETS), "--data", str(Path(self._data.name) / "data"))

    @property
    def host(self) -> str:
        """Where it listens."""
        return self._server.host

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    def restart(self) -> None:
        """Stop cleanly and start again on the same data."""
        self._server.restart()

    def kill(self) -> None:
        """End it as a crash would."""
        self._server.kill()

    def start(self) -> None:
        """Start it again after a kill."""
        self._server.start()

    def expire(self) -> None:
        """Its pager cannot be reached."""
        raise NotImplementedError

    def close(self) -> None:
        """End it, and remove its data."""
        if self._server.running:
            self._server.stop()
        self._server.close()
        self._data.cleanup()


def wait_for_disk(talk: Talk) -> None:
    """Wait until everything that the node has is on disk."""
    for row in talk.get(GetAllVBSeqnos(), Seqnos).seqnos:
        if row.seqno:
            talk.get(SeqnoPersistence(vbucket=VBucketId(row.vbucket), seqno=row.seqno), Done)
