"""Records to the messages of a TAP stream.

TAP knows neither datatypes nor xattrs: a value goes out inflated and without them. The flags of an item were sent as
they lay in memory, and so they are byte-swapped here, unless a client asked for network order (capture 08a_tap_flags0;
errata E-TAP-15). The expiration of an item is a deletion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.node.dcp.frames import CONVERTED_MAX, record_at
from headrace.node.values import told
from headrace.protocol.tap import is_older
from headrace.protocol.tap_acks import OPAQUE_BITS
from headrace.store.records import head_of
from headrace.wire import Dialect
from headrace.wire.catalogue import TapDelete, TapMutation
from headrace.wire.codes import Magic, TapConnectFlag, TapFlag
from headrace.wire.limits import HEADER_BYTES

if TYPE_CHECKING:
    from headrace.protocol.tap import Cue, Wish
    from headrace.protocol.tap_acks import AckLog
    from headrace.protocol.tap_hops import Hops
    from headrace.store.records import Record

_ITEM = head_of(TapMutation, "revision and nru", Dialect.TAP)
_REMOVAL = head_of(TapDelete, "revision", Dialect.TAP)
_MUTATION = TapMutation.spec.opcodes[Dialect.TAP]
_DELETE = TapDelete.spec.opcodes[Dialect.TAP]


def _engine_bytes(message: type[TapMutation | TapDelete], layout: str) -> int:
    spec = message.spec
    chosen = next(one for one in spec.layouts[Dialect.TAP] if one.name == layout)
    return sum(spec.integer(name).size for name in chosen.engine)


_ITEM_ENGINE_BYTES = _engine_bytes(TapMutation, "revision and nru")
_REMOVAL_ENGINE_BYTES = _engine_bytes(TapDelete, "revision")
_ITEM_EXTRAS_BYTES = _ITEM.size - HEADER_BYTES - _ITEM_ENGINE_BYTES
_REMOVAL_EXTRAS_BYTES = _REMOVAL.size - HEADER_BYTES - _REMOVAL_ENGINE_BYTES


@dataclass(slots=True)
class Taken:
    """The messages of some records, one after the other."""

    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    seqnos: list[int] = field(default_factory=list)
    """The seqno of each message."""
    asked: int | None = None
    """Which was the last that asks for an ack."""
    at: int = 0
    """Where in the block to go on."""
    last_seqno: int = 0
    """That of the last record that was looked at."""
    looked: int = 0
    """How many records were looked at."""


class TapFramer:
    """Makes the item messages of one connection."""

    def __init__(self, wish: Wish, log: AckLog[Cue], hops: Hops) -> None:
        self._keys_only = wish.has(TapConnectFlag.KEYS_ONLY)
        # What is all that the client gets, or the last that there is of it here, is not left out: it may go one hop.
        self._ttl_min = int(wish.is_dump or wish.has(TapConnectFlag.TAKEOVER_VBUCKETS))
        self._network_order = wish.has(TapConnectFlag.FIX_BYTEORDER)
        self._log = log
        self._hops = hops

    def take(
        self, block: bytearray | memoryview, at: int, budget: int, *, seqno_max: int, high_seqno: int, since_ns: int
    ) -> Taken:
        """Make messages of the records from a place on: so many bytes or a little more, if so many may be unacked.

        What ends the queue of its vbucket, which goes up to `high_seqno`, asks for an ack. What may go no further, and
        what is older than wanted, is left out; a dump and a takeover have what may go no further, too.
        """
        log, hops, view = self._log, self._hops, memoryview(block)
        taken = Taken(at=at)
        room = min(CONVERTED_MAX, log.room)
        while taken.at < len(block) and taken.size < budget and len(taken.seqnos) < room:
            record, end = record_at(view, taken.at)
            if record.seqno > seqno_max or taken.looked >= CONVERTED_MAX:
                break
            taken.at, taken.last_seqno = end, record.seqno
            taken.looked += 1
            ttl = max(self._ttl_min, hops.left(record.vbucket, record.seqno))
            if not ttl or is_older(record.cas, since_ns):
                continue
            opaque = (log.last + len(taken.seqnos) + 1) & OPAQUE_BITS
            asks = log.acks and (log.asks(opaque) or record.seqno >= high_seqno)
            if asks:
                taken.asked = len(taken.seqnos)
            piece = self._message(record, opaque, ttl, TapFlag.ACK if asks else 0)
            taken.pieces.append(piece)
            taken.size += len(piece)
            taken.seqnos.append(record.seqno)
        return taken

    def _message(self, record: Record, opaque: int, ttl: int, flags: int) -> bytes:
        key = record.key
        if not record.live:
            body_bytes = _REMOVAL_EXTRAS_BYTES + _REMOVAL_ENGINE_BYTES + len(key)
            head = _REMOVAL.pack(
                Magic.REQUEST, _DELETE, len(key), _REMOVAL_EXTRAS_BYTES, 0, record.vbucket, body_bytes, opaque,
                record.cas, _REMOVAL_ENGINE_BYTES, flags, ttl, 0, 0, 0, record.rev_seqno,
            )  # fmt: skip
            return head + key
        item_flags = record.flags
        if self._network_order:
            flags |= TapFlag.NETWORK_BYTE_ORDER
        else:
            item_flags = int.from_bytes(item_flags.to_bytes(4, "big"), "little")
        value = b""
        if self._keys_only:
            flags |= TapFlag.NO_VALUE
        else:
            value, _ = told(record.value, record.datatype, 0)
        body_bytes = _ITEM_EXTRAS_BYTES + _ITEM_ENGINE_BYTES + len(key) + len(value)
        head = _ITEM.pack(
            Magic.REQUEST, _MUTATION, len(key), _ITEM_EXTRAS_BYTES, 0, record.vbucket, body_bytes, opaque, record.cas,
            _ITEM_ENGINE_BYTES, flags, ttl, 0, 0, 0, item_flags, record.expiry, record.rev_seqno, 0,
        )  # fmt: skip
        return b"".join((head, key, value))
