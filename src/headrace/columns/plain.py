"""The same as the kernel, in plain words.

This is the oracle that the kernel is compared with, and the one that finds the reason when a frame cannot be read. It
goes through `wire.decode` message by message and is slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.columns import slots as s
from headrace.columns.changes import NO_SNAPSHOT, Beside, Changes, Positions, Settings
from headrace.columns.schema import (
    CLOCK_NS,
    DEFAULT_NAME,
    EVENTS,
    SNAPSHOT_TYPES,
    TEXT_KEYS,
    schema,
    signed,
    snapshot_type,
)
from headrace.columns.tables import CHANGES
from headrace.errors import RemoteProtocolError
from headrace.wire import catalogue
from headrace.wire.codec import Malformed, Unknown, decode
from headrace.wire.codes import Datatype
from headrace.wire.framing import NEED_DATA, FrameReader
from headrace.wire.header import REQUEST_MAGICS, RESPONSE_MAGICS, Frame
from headrace.wire.leb128 import split_collection
from headrace.wire.limits import HEADER_BYTES, Limits
from headrace.wire.message import Response
from headrace.wire.snappy import inflate, inflated_length
from headrace.wire.xattrs import split_xattrs

if TYPE_CHECKING:
    from headrace.wire.message import Message

Row = dict[str, Any]

_PACKED = int(Datatype.SNAPPY | Datatype.XATTR)


def decode_changes(data: bytes, settings: Settings, positions: Positions) -> Changes:
    """Decode the whole frames at the start of `data`."""
    room = max(len(data), HEADER_BYTES + settings.body_bytes_max)
    reader = FrameReader(Limits(body_bytes_max=settings.body_bytes_max, buffered_bytes_max=room))
    reader.receive(data)
    rows: list[Row] = []
    controls: list[Beside] = []
    value_bytes = key_bytes = 0
    consumed = flow_bytes = 0
    more = False
    error: RemoteProtocolError | None = None
    stop_opcode = catalogue.StreamRequest.spec.opcodes.get(settings.dialect)
    while error is None:
        try:
            frame = reader.next_frame()
            if frame is NEED_DATA:
                break
            message = decode(frame, settings.dialect)
            if type(message) in CHANGES:
                size = _value_size(frame, message, settings)
                full = len(rows) >= settings.rows_max or value_bytes + size > settings.value_bytes_max
                more = bool(rows) and (full or key_bytes + frame.header.key_length > settings.key_bytes_max)
                if more:
                    break
                value_bytes += size
                key_bytes += frame.header.key_length
                rows.append(_row(message, settings, positions))
            else:
                _note_marker(message, positions)
                controls.append(Beside(len(rows), message))
        except RemoteProtocolError as caught:
            error = RemoteProtocolError(caught.text, offset=consumed)
            break
        flow_bytes += _flow_bytes(message, reader.offset - consumed)
        consumed = reader.offset
        if frame.header.magic in RESPONSE_MAGICS and frame.header.opcode == stop_opcode:
            more = True
            break
    table = {name: [row[name] for row in rows] for name in schema().names}
    return Changes(
        rows=pa.RecordBatch.from_pydict(table, schema=schema(settings.keys)),
        controls=controls,
        consumed_bytes=consumed,
        flow_bytes=flow_bytes,
        more=more,
        error=error,
    )


def _flow_bytes(message: Message, length: int) -> int:
    """What a message counts for flow control: a malformed one as the command that it claims to be."""
    if isinstance(message, Response | Unknown):
        return 0
    if isinstance(message, Malformed):
        if message.frame.header.magic not in REQUEST_MAGICS:
            return 0
        return length * message.command.flow_controlled
    return length * message.spec.flow_controlled


def _value_size(frame: Frame, message: Message, settings: Settings) -> int:
    value: bytes = getattr(message, "value", b"")
    packed = isinstance(message, catalogue.Mutation | catalogue.Removal) and frame.header.datatype & Datatype.SNAPPY
    if not value or not packed:
        return len(value)
    size = inflated_length(value)
    if size > settings.inflated_bytes_max:
        raise RemoteProtocolError(
            f"a snappy block claims {size} bytes; at most {settings.inflated_bytes_max} are taken"
        )
    return size


def _note_marker(message: Message, positions: Positions) -> None:
    if not isinstance(message, catalogue.SnapshotMarker):
        return
    if message.start_seqno is not None and message.end_seqno is not None and message.flags is not None:
        positions.table[s.P_START, message.vbucket] = signed(message.start_seqno)
        positions.table[s.P_END, message.vbucket] = signed(message.end_seqno)
        positions.table[s.P_TYPE, message.vbucket] = snapshot_type(message.flags)


def _row(message: Any, settings: Settings, positions: Positions) -> Row:
    """One row: `message` is of a class in `CHANGES`."""
    vbuuid, first, last, kind = (int(number) for number in positions.table[:, message.vbucket])
    snapshot = kind != NO_SNAPSHOT
    row: Row = dict.fromkeys(schema().names)
    row |= {
        "event": EVENTS[CHANGES[type(message)]],
        "vbucket": message.vbucket,
        "vbuuid": vbuuid,
        "scope": DEFAULT_NAME,
        "collection": DEFAULT_NAME,
        "snapshot_start": first if snapshot else None,
        "snapshot_end": last if snapshot else None,
        "snapshot_type": SNAPSHOT_TYPES[kind] if snapshot else None,
        "seqno": signed(message.by_seqno) if hasattr(message, "by_seqno") else None,
        "cas": signed(message.cas),
    }
    if CLOCK_NS[0] <= row["cas"] < CLOCK_NS[1]:
        row["changed_at"] = row["cas"] // 1000
    if isinstance(message, catalogue.SystemEvent):
        row |= {"key": _key(message.key, settings), "value": message.value, "flags": message.event}
    if isinstance(message, catalogue.Mutation | catalogue.Removal):
        row |= _item(message, settings)
    return row


def _key(key: bytes, settings: Settings) -> str | bytes:
    if settings.keys != TEXT_KEYS:
        return key
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"the key {key!r} is not UTF-8; read it with keys=binary") from error


def _item(message: catalogue.Mutation | catalogue.Removal, settings: Settings) -> Row:
    row: Row = {"rev": signed(message.rev_seqno), "datatype": message.datatype & ~_PACKED}
    key, value = message.key, message.value
    if settings.collections is not None:
        collection, key = split_collection(key)
        row["scope"], row["collection"] = settings.collections.get(collection, (None, f"0x{collection:x}"))
    row["key"] = _key(key, settings)
    if value and message.datatype & Datatype.SNAPPY:
        value = inflate(value, inflated_bytes_max=settings.inflated_bytes_max)
    if value and message.datatype & Datatype.XATTR:
        row["xattrs"], value = _xattrs(value)
    if isinstance(message, catalogue.Mutation) or value:
        row["value"] = value
    for name in ("flags", "expiry", "lock_time", "delete_time"):
        row[name] = getattr(message, name, None)
    return row


def _xattrs(value: bytes) -> tuple[list[tuple[str, str]], bytes]:
    pairs, document = split_xattrs(value)
    try:
        return [(name.decode(), text.decode()) for name, text in pairs.items()], document
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("an xattr is not UTF-8") from error
