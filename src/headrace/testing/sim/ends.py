"""The ends of a simulated node: its producers, and what the handlers of commands want of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.history import State
from headrace.node.dcp.producer import Producer
from headrace.protocol.stream import Phase
from headrace.testing.sim.model import BrokenError
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import GetFailoverLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.node.buckets import OpenBucket
    from headrace.testing.link import MemoryLine
    from headrace.testing.sim.node import SimNode
    from headrace.wire import Message
    from headrace.wire.codes import OpenFlag


class Source(Producer):
    """A producer whose end is looked at: a vbucket that it stopped and did not give away is served again."""

    def close(self) -> None:
        """The connection is gone."""
        held = [one.vb for one in self.streams.values() if one.phase in {Phase.STOPPING, Phase.DRAINING}]
        super().close()
        for vb in held:
            if vb.state is not State.ACTIVE:
                raise BrokenError(f"{self.name}: vbucket {vb.id} is {vb.state.name} and nobody was told to own it")


class Served:
    """The end of a node that a reader talks to: its producer, and the one command that is not for the producer."""

    is_producer = True

    def __init__(self, node: SimNode, line: MemoryLine, name: str, flags: OpenFlag) -> None:
        assert node.opened is not None
        self.name = name
        self.producer = Producer(node.opened, line, name, flags, snappy=False)
        self._node = node
        self._line = line

    @property
    def deadline(self) -> float | None:
        """When the producer has to do something."""
        return self.producer.deadline

    def receive(self, message: Message, now: float) -> None:
        """Take what the reader sent."""
        if isinstance(message, GetFailoverLog):
            if self._node.vb(message.vbucket) is None:
                self._line.leave("the log of a vbucket that is not there was asked for")
            else:
                self._line.send(encode(self._node.failover_log(message)))
        else:
            self.producer.receive(message, now)

    def pump(self, now: float) -> bool:
        """Let the producer send."""
        return self.producer.pump(now)

    def stats(self) -> Iterator[tuple[str, object]]:
        """What the producer tells."""
        return self.producer.stats()

    def close(self) -> None:
        """The connection is gone."""
        self.producer.close()


class _Services:
    sync_every_write = False


class SimSession:
    """What the handlers of commands want of a client."""

    def __init__(self, opened: OpenBucket) -> None:
        self.opened = opened
        self.bucket = opened.bucket
        self.services = _Services()
        self.end = None
        self.dialect = Dialect.DCP
        self.datatypes = 0
        self.features: frozenset[int] = frozenset()
        self.tells_seqno = True
        self.said_hello = True
