"""One captured message against one of ours: which belong together, and in what they differ.

What no two runs have in common is not compared: CAS values, times, and vb UUIDs by themselves. UUIDs are compared up
to a renaming: where the capture has one uuid twice, ours must have one uuid twice. The same goes for the opaques that
a server chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from headrace.ids import Opaque, VbUuid
from headrace.wire import Dialect, Header, Message, Response, encode
from headrace.wire.catalogue import (
    AddStream,
    BufferAck,
    Control,
    DcpNoop,
    Deletion,
    ErrorReply,
    Expiration,
    FailoverEntry,
    FailoverLog,
    Mutated,
    Mutation,
    Observed,
    ObserveSeqno,
    StatEntry,
    StreamAdded,
    StreamRequest,
    TapCheckpointEnd,
    TapCheckpointStart,
    TapDelete,
    TapFlush,
    TapMutation,
    TapOpaque,
    TapVBucketSet,
)
from headrace.wire.codec import Malformed
from headrace.wire.registry import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterator

ITEMS = (Mutation, Deletion, Expiration)
TAP_ITEMS = (TapMutation, TapDelete)
TAP_CHECKPOINTS = (TapCheckpointStart, TapCheckpointEnd)
TAP = (*TAP_ITEMS, *TAP_CHECKPOINTS, TapFlush, TapOpaque, TapVBucketSet)
"""What a TAP server sends; it numbers these by itself."""
Item = Mutation | Deletion | Expiration
UNCOMPARED = frozenset({"cas", "opaque", "opcode", "layout", "vbuuid", "vbucket", "status", "datatype", "bytes_acked"})
"""CAS, when acks are sent, and what is looked at by other means."""
RELATIVE_EXPIRY_S_MAX = 30 * 24 * 3600

_NAMES = {cls.spec.opcodes[Dialect.DCP]: cls.spec.name for cls in REQUESTS if Dialect.DCP in cls.spec.opcodes}
_UUID_STATS = (b":uuid", b":id")

_ADD_STREAM = AddStream.spec.opcodes[Dialect.DCP]

Whole = tuple[bytes, Message]
"""A message, and the bytes that it was."""
Difference = tuple[str, object, object]
"""A field, what the capture has, what we have."""


@dataclass(slots=True)
class Renaming:
    """What our node calls the uuids and opaques of the capture."""

    uuids: dict[int, int] = field(default_factory=dict)
    """For all connections: the capture's uuid to ours."""
    opaques: dict[tuple[str, int], int] = field(default_factory=dict)
    """By connection: what the captured server chose to what ours chose."""
    told_opaques: dict[tuple[str, int], int] = field(default_factory=dict)
    """The same as answers to ADD_STREAM tell it: in the other byte order, where the server mixes them up."""

    def learn_uuid(self, theirs: int, ours: int) -> bool:
        """Take down a pair; false when one of the two is known by another name."""
        if theirs in self.uuids or ours in self.uuids.values():
            return self.uuids.get(theirs) == ours
        self.uuids[theirs] = ours
        return True

    def uuid(self, theirs: int) -> int:
        """Our name of a uuid; one that no server of the capture has made stays as it is."""
        return self.uuids.get(theirs, theirs)

    def learn_opaque(self, connection: str, theirs: int, ours: int) -> None:
        """Take down what our server chose where the captured one chose something."""
        self.opaques[connection, theirs] = ours
        self.told_opaques[connection, int.from_bytes(theirs.to_bytes(4, "big"), "little")] = ours

    def opaque(self, connection: str, theirs: int) -> int:
        """Our name of an opaque; one that the client has chosen stays as it is."""
        return self.opaques.get((connection, theirs), theirs)


def label(message: Message, asked: str = "") -> str:
    """What a message is called in reports and in the table of differences; `asked` is the label of its request."""
    if isinstance(message, StatEntry):
        return f"stat {message.key.decode()}"
    if isinstance(message, Control):
        return f"control {message.key.decode()}"
    if isinstance(message, Response):
        return f"answer to {asked or _NAMES.get(message.opcode, hex(message.opcode))}"
    return message.command.name if isinstance(message, Malformed) else message.spec.name


def identity(message: Message, opaque: int) -> tuple[object, ...]:
    """What a message is for: the same message of two servers has the same identity."""
    if isinstance(message, StatEntry):
        return ("stat", opaque, message.key)
    if isinstance(message, Response):
        return ("answer", message.opcode, opaque)
    if isinstance(message, ITEMS):
        return ("item", opaque, message.by_seqno)
    if isinstance(message, Control):
        return ("control", message.key)
    if isinstance(message, TAP):
        return (label(message), message.vbucket, *_tap_identity(message))
    if isinstance(message, StreamRequest):
        opaque = message.vbucket
    return (label(message), 0 if isinstance(message, DcpNoop | BufferAck) else opaque)


def _tap_identity(message: Message) -> tuple[object, ...]:
    """What tells a message of a TAP stream from others of its kind and vbucket."""
    if isinstance(message, TAP_ITEMS):
        return (message.key, message.rev_seqno)
    if isinstance(message, TAP_CHECKPOINTS):
        return (message.checkpoint,)
    if isinstance(message, TapOpaque):
        return (message.code,)
    return (message.state,) if isinstance(message, TapVBucketSet) else ()


def chosen_by_server(message: Message) -> bool:
    """Whether the opaque of a server's message is its own choice."""
    return isinstance(message, (Control, StreamRequest, DcpNoop, BufferAck, *TAP))


def differences(theirs: Whole, ours: Whole, names: Renaming, connection: str) -> Iterator[Difference]:
    """In what our message differs from the captured one; both have the same identity."""
    their_header, our_header = Header.parse(theirs[0]), Header.parse(ours[0])
    captured, got = _told_by_our_opaques(theirs[1], names, connection), ours[1]
    for name in ("magic", "opcode", "datatype", "extras_length", "key_length", "body_length"):
        if name != "body_length" or not _tells_uuid(captured):  # a uuid in digits may have one more or less
            yield from _differing(name, getattr(their_header, name), getattr(our_header, name))
    specific = "status" if isinstance(captured, Response) else "vbucket"
    yield from _differing(specific, their_header.specific, our_header.specific)
    yield from _uuid_differences(captured, got, names)
    if type(captured) is not type(got):
        return
    for one in fields(captured):
        if one.name not in UNCOMPARED:
            pair = _comparable(captured, one.name), _comparable(got, one.name)
            yield from _differing(one.name, *pair)


def _told_by_our_opaques(message: Message, names: Renaming, connection: str) -> Message:
    """An answer to ADD_STREAM with our opaque of the stream in the place of the captured one; else the message."""
    if isinstance(message, StreamAdded):
        told = names.told_opaques.get((connection, message.stream_opaque), message.stream_opaque)
        return replace(message, stream_opaque=Opaque(told))
    if isinstance(message, ErrorReply) and message.opcode == _ADD_STREAM and message.extras:
        captured = int.from_bytes(message.extras, "big")
        return replace(message, extras=names.told_opaques.get((connection, captured), captured).to_bytes(4, "big"))
    return message


def _tells_uuid(message: Message) -> bool:
    return isinstance(message, StatEntry) and message.key.endswith(_UUID_STATS)


def _differing(name: str, captured: object, got: object) -> Iterator[Difference]:
    if captured != got:
        yield name, captured, got


def _comparable(message: Message, name: str) -> Any:
    content = getattr(message, name)
    if name == "entries":
        return tuple(entry.seqno for entry in content)
    if name == "expiry" and content is not None and content > RELATIVE_EXPIRY_S_MAX:
        return "a time"
    if name == "value" and _tells_uuid(message):
        return "a uuid"
    return content


def _uuid_differences(captured: Message, got: Message, names: Renaming) -> Iterator[Difference]:
    for theirs, ours in _uuid_pairs(captured, got):
        if not names.learn_uuid(theirs, ours):
            yield "vbuuid", f"{theirs} is {names.uuids.get(theirs)}", ours


def _uuid_pairs(captured: Message, got: Message) -> list[tuple[int, int]]:
    """The uuids that stand at the same place in both. Failover logs are laid side by side from their oldest entry."""
    if isinstance(captured, FailoverLog) and isinstance(got, FailoverLog):
        pairs = zip(reversed(captured.entries), reversed(got.entries), strict=False)
        return [(theirs.vbuuid, ours.vbuuid) for theirs, ours in pairs]
    for cls in (StreamRequest, Observed, Mutated):
        if isinstance(captured, cls) and isinstance(got, cls):
            theirs, ours = captured.vbuuid, got.vbuuid
            return [] if theirs is None or ours is None else [(theirs, ours)]
    if isinstance(captured, StatEntry) and isinstance(got, StatEntry) and _tells_uuid(captured):
        return [(int(captured.value), int(got.value))]
    return []


def as_ours(wire: bytes, message: Message | None, connection: str, names: Renaming) -> bytes:
    """A captured message of the client, with our node's uuids and opaques in the place of the captured server's."""
    if isinstance(message, StreamRequest | ObserveSeqno):
        wire = encode(replace(message, vbuuid=VbUuid(names.uuid(message.vbuuid))))
    elif isinstance(message, FailoverLog):
        entries = tuple(FailoverEntry(VbUuid(names.uuid(one.vbuuid)), one.seqno) for one in message.entries)
        wire = encode(replace(message, entries=entries))
    opaque = names.opaque(connection, Header.parse(wire).opaque)
    return wire[:12] + opaque.to_bytes(4, "big") + wire[16:]
