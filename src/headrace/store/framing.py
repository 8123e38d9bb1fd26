"""What the node and its writer process say to each other over a socket pair.

A message is a JSON object behind its length (u32). A message that brings records names the vbuckets; then follow, for
each of them in turn, the length of a block (u32) and the block: its records, one behind the other. A record tells its
own length, so the node, whose time is dear, joins them and does not count them. Nothing is pickled: the worst that
bytes can do is to be refused.
"""

from __future__ import annotations

import json
import socket
from struct import Struct
from typing import TYPE_CHECKING, Any

from headrace.ids import VBucketId
from headrace.store import layout
from headrace.store.contract import Changes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.store.places import Places

LENGTH = Struct(">I")
BLOCK_BYTES = 4 << 20
"""How much goes into one system call. Each call gives up the GIL, and to have it back from a busy event loop takes
milliseconds: a call for every thousand records would spend its time waiting for that."""
BUFFERS_MAX = 1000
"""How many buffers go into one system call; Linux takes 1024."""
RECEIVE_BYTES_MAX = 1 << 30
"""How much is asked of one system call; Linux gives at most 2 GiB."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message without records."""
    text = json.dumps(message).encode()
    connection.sendall(LENGTH.pack(len(text)) + text)


def receive(connection: socket.socket) -> dict[str, Any]:
    """Wait for a message; EOFError when the other side has gone."""
    (size,) = LENGTH.unpack(receive_bytes(connection, LENGTH.size))
    message: dict[str, Any] = json.loads(receive_bytes(connection, size))
    return message


def send_changes(connection: socket.socket, message: dict[str, Any], changes: Sequence[Changes]) -> None:
    """Send a message with the changes of vbuckets."""
    message["changes"] = [{"vbucket": change.vbucket, "now": layout.vbucket_fields(change.now)} for change in changes]
    send(connection, message)
    buffers: list[bytes] = []
    gathered = 0
    for change in changes:
        block = b"".join(change.records)
        buffers += (LENGTH.pack(len(block)), block)
        gathered += len(block)
        if gathered >= BLOCK_BYTES or len(buffers) >= BUFFERS_MAX:
            _send_buffers(connection, buffers)
            buffers = []
            gathered = 0
    _send_buffers(connection, buffers)


def receive_changes(connection: socket.socket, message: dict[str, Any], places: Places) -> list[Changes]:
    """Take the changes that a message announced."""
    changes = []
    for one in message["changes"]:
        (size,) = LENGTH.unpack(receive_bytes(connection, LENGTH.size))
        block = receive_bytes(connection, size)
        changes.append(
            Changes(
                vbucket=VBucketId(one["vbucket"]),
                records=_parted(block, places),
                now=layout.vbucket_from_fields(one["now"]),
            )
        )
    return changes


def _parted(block: bytes, places: Places) -> list[bytes]:
    """The records of a block. What is none is left to the writer to refuse, at the end."""
    unpack, body_at, header_bytes = LENGTH.unpack_from, places.body_bytes_at, places.header_bytes
    records, at, size = [], 0, len(block)
    while at + header_bytes <= size:
        end = at + header_bytes + unpack(block, at + body_at)[0]
        records.append(block[at:end])
        at = end
    if at < size:
        records.append(block[at:])
    return records


def receive_bytes(connection: socket.socket, size: int) -> bytes:
    """Wait for so many bytes; EOFError when the other side has gone."""
    parts = []
    while size:
        part = connection.recv(min(size, RECEIVE_BYTES_MAX), socket.MSG_WAITALL)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _send_buffers(connection: socket.socket, buffers: list[bytes]) -> None:
    sent = connection.sendmsg(buffers)
    if sent < sum(map(len, buffers)):  # a signal came between, or there was more than one call takes
        connection.sendall(memoryview(b"".join(buffers))[sent:])
