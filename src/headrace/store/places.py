"""Where things stand in a record, as plain numbers, for a process that has not imported the catalogue.

The catalogue is the one source of these numbers: `records.PLACES` is made of it. The writer process gets them as a
message, since to import the catalogue takes it several times as long as all else that it does before it can write.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import NamedTuple


class Places(NamedTuple):
    """The shape of a record. Every kind has its seqno at the same place, and every tombstone its delete time."""

    head: str
    """A struct's format: magic, opcode, key length, extras length, vbucket, body length, seqno."""
    magic: int
    live: int
    extras_bytes: dict[int, int]
    """How many bytes of extras each kind has; what is not among them is no record."""
    header_bytes: int
    body_bytes_at: int
    seqno_at: int
    expiry_at: int
    delete_time_at: int

    def to_json(self) -> str:
        """For the way to another process."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Places:
        """What `to_json` gave."""
        fields = json.loads(text)
        fields["extras_bytes"] = {int(opcode): size for opcode, size in fields["extras_bytes"].items()}
        return cls(**fields)

    def damage(self, record: bytes, *, vbucket: int, key: bytes, seqno: bytes) -> str:
        """What is wrong with a record that was found where this one should be; empty when nothing is."""
        head = Struct(self.head)
        if len(record) < head.size:
            return f"it ends after {len(record)} bytes"
        magic, opcode, key_bytes, extras_bytes, its_vbucket, body_bytes, _ = head.unpack_from(record)
        if magic != self.magic or self.extras_bytes.get(opcode) != extras_bytes:
            return f"magic {magic:#04x}, opcode {opcode:#04x} and {extras_bytes} bytes of extras are no record"
        if len(record) != self.header_bytes + body_bytes:
            return f"it has {len(record)} bytes and says {self.header_bytes + body_bytes}"
        key_at = self.header_bytes + extras_bytes
        if its_vbucket != vbucket or record[key_at : key_at + key_bytes] != key:
            return f"it is of vbucket {its_vbucket}, key {record[key_at : key_at + key_bytes]!r}"
        if record[self.seqno_at : self.seqno_at + 8] != seqno:
            return f"it says that its seqno is {int.from_bytes(record[self.seqno_at : self.seqno_at + 8])}"
        return ""
