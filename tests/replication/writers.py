"""Clients that write on while a vbucket changes its owner, and remember what they were promised.

A writer owns its keys and counts up the value of each. It writes to whoever serves the vbucket: refused by one node, it
tries the other; cut off, it does not know if the last write was done. So a key must in the end hold a number from the
last one that was promised to the last one that was tried.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from headrace.client import ClientError, KvConnection, NotMyVBucketError
from headrace.ids import Seqno, VBucketId
from headrace.wire.catalogue import Mutated, SeqnoPersistence, Set
from tests.replication.nodes import dump

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.pipelines.servers import Server


class Promise(NamedTuple):
    """A write that was acknowledged: which change it was, and where."""

    server: str
    vbuuid: int
    seqno: int


class Writer(threading.Thread):
    """Writes to one vbucket until told to stop. Each promise must be durable: nodes sync every write, or are asked."""

    def __init__(self, servers: Sequence[Server], vb: int, name: str, *, keys: int = 5, asks: bool = False) -> None:
        super().__init__(name=name, daemon=True)
        self._servers = servers
        self._vb = vb
        self._keys = [f"{name}-{number}".encode() for number in range(keys)]
        self._asks = asks
        self._ended = threading.Event()
        self._connections: dict[int, KvConnection] = {}
        self.tried: dict[bytes, int] = {}
        self.promised: dict[bytes, int] = {}
        self.promises: list[Promise] = []
        self.refused = 0

    def run(self) -> None:
        """Write."""
        at, number = 0, 0
        while not self._ended.is_set():
            number += 1
            key = self._keys[number % len(self._keys)]
            self.tried[key] = number
            while not self._ended.is_set() and not self._write(at, key, number):
                at = (at + 1) % len(self._servers)
        for connection in self._connections.values():
            connection.close()

    def _write(self, at: int, key: bytes, number: int) -> bool:
        """Try one node; False when it is not the one, or is away."""
        try:
            connection = self._connections.get(at)
            if connection is None:
                connection = self._connections[at] = self._servers[at].connect()
            reply = connection.request(Set(key=key, value=b"%d" % number, vbucket=VBucketId(self._vb)))
            assert isinstance(reply, Mutated)
            if self._asks:
                self._ask(connection, reply)
        except NotMyVBucketError:
            self.refused += 1
            time.sleep(0.002)
            return False
        except ClientError:
            gone = self._connections.pop(at, None)
            if gone is not None:
                gone.close()
            time.sleep(0.02)
            return False
        self.promised[key] = number
        self.promises.append(Promise(str(self._servers[at]), int(reply.vbuuid or 0), int(reply.seqno or 0)))
        return True

    def _ask(self, connection: KvConnection, reply: Mutated) -> None:
        """Count a write only when the disk has it."""
        vb, seqno = VBucketId(self._vb), Seqno(reply.seqno or 0)
        connection.request(SeqnoPersistence(vbucket=vb, seqno=seqno))

    def stop(self) -> None:
        """End, and wait for it."""
        self._ended.set()
        self.join(30)
        assert not self.is_alive(), f"{self.name} hangs"


def check(writers: Sequence[Writer], owner: Server, vb: int) -> None:
    """Hold what the owner has against what was promised before; the writers may go on."""
    promised = [(writer, dict(writer.promised)) for writer in writers]
    found = dump(owner, vb)
    for writer, numbers in promised:
        for key, number in numbers.items():
            assert key in found, f"{key!r} was promised with {number} and is not there"
            value = int(found[key][-1])
            assert number <= value <= writer.tried[key], (
                f"{key!r}: {value}, promised {number}, tried {writer.tried[key]}"
            )
    places = [(promise.vbuuid, promise.seqno) for writer in writers for promise in list(writer.promises)]
    assert len(places) == len(set(places)), "two owners gave the same seqno of one branch"


def stop_all(writers: Sequence[Writer]) -> None:
    """End all of them, whatever happens to one."""
    for writer in writers:
        with suppress(AssertionError):
            writer.stop()
    assert not any(writer.is_alive() for writer in writers)
