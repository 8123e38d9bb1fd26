"""A reader in the simulation: it follows vbuckets by the rules of `protocol.subscription` and keeps a copy of each.

It has a link to each node that it reads from, goes where the manager says that a vbucket is (or astray, while the
simulation makes trouble), acknowledges slowly, and may be started again from what it saved. At the end of each snapshot
its copy must be a state that the vbucket had; on a rollback it goes back to the copy of a whole place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.history import Position, SnapshotRange
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.protocol.subscription import Phase, Subscription, branch_of
from headrace.store.records import LIVE
from headrace.testing.link import Link, Pace
from headrace.testing.sim.ends import Served
from headrace.testing.sim.model import BrokenError, Copy, Place, Shown
from headrace.wire import Dialect, Response, encode
from headrace.wire.catalogue import (
    BufferAck,
    Control,
    DcpNoop,
    Deletion,
    Done,
    ErrorReply,
    Expiration,
    FailoverLog,
    GetFailoverLog,
    Mutation,
    Rollback,
    SnapshotMarker,
    StreamEnd,
    StreamRequest,
)
from headrace.wire.codes import OpenFlag, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.testing.sim.node import SimNode
    from headrace.testing.sim.world import World
    from headrace.wire import Message

_REQUEST = StreamRequest.spec.opcodes[Dialect.DCP]
_LOG = GetFailoverLog.spec.opcodes[Dialect.DCP]
_NOOP = DcpNoop.spec.opcodes[Dialect.DCP]
_HEADER_BYTES = 24


@dataclass
class Saved:
    """What a reader keeps where it survives: a position, and the copy that belongs to it."""

    position: Position = field(default_factory=Position.beginning)
    copy: Copy = field(default_factory=dict)
    whole_copy: Copy = field(default_factory=dict)


class Followed:
    """One vbucket at a reader."""

    def __init__(self, vb_id: int, saved: Saved) -> None:
        self.vb_id = vb_id
        self.subscription = Subscription(VBucketId(vb_id), saved.position)
        self.copy: Copy = dict(saved.copy)
        self.wholes: dict[int, Copy] = {0: {}, int(self.subscription.progress.whole): dict(saved.whole_copy)}
        self.snapshot_end = int(saved.position.snapshot.end)
        self.last_seqno = int(saved.position.seqno)
        self.opaque = 0
        self.link: ReaderLink | None = None

    def told(self) -> str:
        """Where it is, for people."""
        link = self.link
        where = (
            "nowhere" if link is None else f"{link.node.name} by {link.name}{'' if link.link.is_open else ', broken'}"
        )
        position = self.subscription.position
        return f"at {position.vbuuid:x}:{self.last_seqno}, {self.subscription.phase}, {where}"

    def save(self) -> Saved:
        """What is to be kept now."""
        whole = self.wholes[int(self.subscription.progress.whole)]
        return Saved(self.subscription.position, dict(self.copy), dict(whole))

    @property
    def is_whole(self) -> bool:
        """Whether the copy is a state of the vbucket."""
        return self.last_seqno == int(self.subscription.progress.whole)

    def save_whole(self) -> Saved:
        """What can be gone on with from the last place where the copy was whole."""
        whole = self.subscription.progress.whole
        if not whole:
            return Saved()
        copy = self.wholes[int(whole)]
        log = self.subscription.progress.log
        vbuuid = self.subscription.position.vbuuid if log is None else branch_of(log, whole)
        return Saved(Position(vbuuid=vbuuid, seqno=whole, snapshot=SnapshotRange.at(whole)), dict(copy), dict(copy))

    def take(self, item: Mutation | Deletion | Expiration, world: World, who: str) -> None:
        """Apply one change."""
        seqno = int(item.by_seqno)
        if seqno <= self.last_seqno:
            raise BrokenError(f"{who}, vbucket {self.vb_id}: seqno {seqno} came after {self.last_seqno}")
        if seqno > self.snapshot_end:
            raise BrokenError(
                f"{who}, vbucket {self.vb_id}: seqno {seqno} outside the snapshot that ends at {self.snapshot_end}"
            )
        self.last_seqno = seqno
        is_live = item.spec.opcodes[Dialect.DCP] == LIVE
        self.copy[item.key] = Shown(
            is_live,
            item.value,
            item.datatype,
            item.cas,
            seqno,
            item.rev_seqno,
            item.flags if isinstance(item, Mutation) else 0,
            item.expiry if isinstance(item, Mutation) else 0,
        )
        whole = seqno == self.snapshot_end
        self.subscription.advance(
            seqno=Seqno(seqno), end=Seqno(self.snapshot_end), whole=Seqno(seqno) if whole else None
        )
        if whole:
            self.require_whole(world, who)
            self.wholes[seqno] = dict(self.copy)

    def require_whole(self, world: World, who: str) -> None:
        """The copy must be a state that the vbucket had."""
        log = self.subscription.progress.log
        assert log is not None
        world.model.require_copy(self.vb_id, Place(log.latest.vbuuid, self.last_seqno), self.copy, who)

    def roll_back(self, log: FailoverLog, *, to_zero: bool) -> str:
        """Go back to a whole place, as the subscription says."""
        told = self.subscription.roll_back(log.entries, to_zero=to_zero)
        self.copy = dict(self.wholes[told.whole])
        self.wholes = {seqno: copy for seqno, copy in self.wholes.items() if seqno <= told.whole}
        self.last_seqno = self.snapshot_end = int(told.whole)
        return f"asked {told.asked.seqno}, told {told.to}, goes to {told.whole}: {told.because}"


class ReaderLink:
    """The end of a reader on its link to one node."""

    is_producer = False

    def __init__(self, reader: Reader, node: SimNode, pace: Pace) -> None:
        world = reader.world
        self.name = f"{reader.name}-{world.number()}"
        self.node = node
        self.reader = reader
        self.deadline: float | None = None
        self.link = Link(world.loop, world.child(), pace=pace, names=(self.name, node.name))
        self._line = self.link.a
        self._line.dialect = reader.dialect
        self._unacked = 0
        self._streams: dict[int, Followed] = {}
        served = Served(node, self.link.b, self.name, OpenFlag.PRODUCER | reader.flags)
        node.lines[self.link.b] = None
        self.link.join(self, served)
        if reader.window_bytes:
            self._control(b"connection_buffer_size", b"%d" % reader.window_bytes)
        if reader.noops:
            self._control(b"enable_noop", b"true")
            self._control(b"set_noop_interval", b"20")

    def _control(self, key: bytes, value: bytes) -> None:
        self._line.send(encode(Control(key=key, value=value, opaque=Opaque(1))))

    def ask(self, followed: Followed) -> None:
        """Ask for a stream."""
        opaque = self.reader.next_opaque()
        followed.opaque, followed.link = opaque, self
        self._streams[opaque] = followed
        request = followed.subscription.request(Opaque(opaque))
        if self.reader.dialect is Dialect.UPR:
            request = replace(request, snapshot_start=None, snapshot_end=None)
        self.reader.trace(
            f"vb {followed.vb_id} asks {self.node.name} from {request.vbuuid:x}:{request.start_seqno} "
            f"({request.snapshot_start}-{request.snapshot_end})"
        )
        self._line.send(encode(request, self.reader.dialect))

    def receive(self, message: Message, now: float) -> None:
        """Take a message of the producer."""
        if isinstance(message, Response):
            self._answered(message, now)
            return
        followed = self._streams.get(message.opaque)
        if isinstance(message, DcpNoop):
            self._line.send(encode(Done(opcode=_NOOP, opaque=message.opaque)))
            return
        self._unacked += len(encode(message))
        if followed is None:
            return  # of a stream that is over here
        if isinstance(message, SnapshotMarker):
            self._marker(followed, message)
        elif isinstance(message, Mutation | Deletion | Expiration):
            followed.take(message, self.reader.world, self.reader.name)
        elif isinstance(message, StreamEnd):
            del self._streams[message.opaque]
            followed.link = None
            self.reader.trace(f"vb {followed.vb_id} ended at {followed.last_seqno}: reason {message.reason}")
            followed.subscription.ended(message.reason, now, marked_end=followed.snapshot_end)
        else:
            raise BrokenError(f"{self.name}: a reader was sent {message!r}")

    def _marker(self, followed: Followed, marker: SnapshotMarker) -> None:
        start, end = int(marker.start_seqno or 0), int(marker.end_seqno or 0)
        if start > followed.last_seqno or end <= followed.last_seqno or end < start:
            raise BrokenError(
                f"{self.name}, vbucket {followed.vb_id}: a marker {start}-{end} after seqno {followed.last_seqno}"
            )
        followed.snapshot_end = end

    def _answered(self, answer: Response, now: float) -> None:
        followed = self._streams.get(answer.opaque)
        if followed is None or answer.opcode not in {_REQUEST, _LOG}:
            return
        subscription = followed.subscription
        if answer.opcode == _LOG:
            del self._streams[answer.opaque]
            followed.link = None
            if isinstance(answer, FailoverLog) and subscription.phase is Phase.ROLLING_BACK:
                told = followed.roll_back(answer, to_zero=self.reader.forgetful)
                self.reader.trace(f"vb {followed.vb_id} rolls back: {told}")
            return
        if isinstance(answer, FailoverLog):
            subscription.started(answer.entries)
            return
        if isinstance(answer, Rollback):
            subscription.told_to_roll_back(answer.seqno)
            self._line.send(encode(GetFailoverLog(vbucket=VBucketId(followed.vb_id), opaque=answer.opaque)))
            return
        assert isinstance(answer, ErrorReply)
        del self._streams[answer.opaque]
        followed.link = None
        if self.reader.dialect is Dialect.UPR and answer.status in {Status.KEY_NOT_FOUND, Status.OUT_OF_RANGE}:
            self.reader.trace(f"vb {followed.vb_id} is off the log, and begins anew")
            self.reader.followed[followed.vb_id] = Followed(followed.vb_id, Saved())
            return
        refusal = subscription.refused(answer.status, now)
        if subscription.phase is Phase.FAILED:
            raise BrokenError(f"{self.name}: {refusal.text}")

    def pump(self, now: float) -> bool:
        """Acknowledge what was read."""
        if self._unacked:
            self._line.send(encode(BufferAck(opaque=Opaque(2), bytes_acked=self._unacked)))
            self._unacked = 0
        self.deadline = now + self.reader.ack_s
        return False

    def stats(self) -> Iterator[tuple[str, object]]:
        """A reader tells nothing."""
        return iter(())

    def close(self) -> None:
        """The connection is gone: what was asked or streamed is to be asked for again."""
        now = self.reader.world.loop.time()
        self.reader.links.pop(self.node.name, None)
        streams, self._streams = self._streams, {}
        for followed in streams.values():
            followed.link = None
            followed.subscription.lost(now)


class Reader:
    """Follows the vbuckets of the cluster."""

    def __init__(self, world: World, name: str, vbuckets: int) -> None:
        rng = world.rng
        self.world = world
        self.name = name
        self.links: dict[str, ReaderLink] = {}
        self.window_bytes = rng.choice((0, 0, 1, 100, 1000))
        self.noops = rng.random() < 0.5
        self.ack_s = rng.choice((0.01, 0.1, 1.0))
        self.flags = rng.choice((OpenFlag(0), OpenFlag.INCLUDE_DELETE_TIMES))
        self.forgetful = rng.random() < 0.2
        self.saved = {vb_id: Saved() for vb_id in range(vbuckets)}
        self.followed = {vb_id: Followed(vb_id, saved) for vb_id, saved in self.saved.items()}
        self.dialect = Dialect.UPR if rng.random() < 0.2 else Dialect.DCP
        self._opaque = 16

    def trace(self, text: str) -> None:
        """Tell what happens."""
        self.world.trace(f"{self.name} {text}")

    def next_opaque(self) -> int:
        """Name a stream."""
        self._opaque += 1
        return self._opaque

    def save(self) -> None:
        """Keep where it is."""
        self.saved = {vb_id: followed.save() for vb_id, followed in self.followed.items()}

    def restart(self) -> None:
        """Begin again with what was saved; the links of before just break."""
        self.trace("restarts")
        for link in list(self.links.values()):
            link.link.a.forget()
            link.link.cut(a_hears_s=None, b_hears_s=self.world.rng.random(), why="the reader restarts")
        self.links.clear()
        self.followed = {vb_id: Followed(vb_id, saved) for vb_id, saved in self.saved.items()}

    def _go_back(self, followed: Followed) -> None:
        """UPR's request does not tell a snapshot: only a copy that is whole can go on."""
        whole = followed.subscription.progress.whole
        self.trace(f"vb {followed.vb_id} goes back from {followed.last_seqno} to {whole}, where it is whole")
        self.followed[followed.vb_id] = Followed(followed.vb_id, followed.save_whole())

    def look(self) -> None:
        """Ask for what is not followed and may be asked for."""
        world = self.world
        now = world.loop.time()
        for vb_id, followed in list(self.followed.items()):
            ready_at = followed.subscription.ready_at
            if followed.link is not None or ready_at is None or ready_at > now:
                continue
            if self.dialect is Dialect.UPR and not followed.is_whole:
                self._go_back(followed)
                continue
            node = world.node_to_read(vb_id)
            if node is None or not node.is_up or node.is_cut_off:
                followed.subscription.missed(now)
                continue
            link = self.links.get(node.name)
            if link is None or not link.link.a.is_open:
                link = self.links[node.name] = ReaderLink(self, node, world.pace())
            link.ask(followed)


__all__ = ["Reader"]
