"""A classic pcap of one TCP connection, for tools that read what went over a wire.

Ethernet, IPv4 and TCP with right checksums; a handshake, then each message in a segment of its own (several, when it is
long), sequence and acknowledgement numbers in step.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

CLIENT = (bytes([10, 0, 0, 1]), 50123)
SERVER = (bytes([10, 0, 0, 2]), 11999)
SEGMENT_BYTES = 16_000
_SYN, _ACK, _PUSH = 0x02, 0x10, 0x08
_TCP = 6
_ETHERNET = 1


def checksum(data: bytes) -> int:
    """The internet checksum: ones' complement of the ones' complement sum."""
    padded = data + bytes(len(data) % 2)
    total: int = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Connection:
    """Collects packets; `client` and `server` are the next sequence numbers of the two."""

    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._next = {CLIENT: 1000, SERVER: 2000}
        self._packet(CLIENT, SERVER, b"", _SYN)
        self._packet(SERVER, CLIENT, b"", _SYN | _ACK)
        self._packet(CLIENT, SERVER, b"", _ACK)

    def send(self, message: bytes, *, from_server: bool) -> None:
        """Add one message."""
        source, target = (SERVER, CLIENT) if from_server else (CLIENT, SERVER)
        for start in range(0, len(message), SEGMENT_BYTES):
            self._packet(source, target, message[start : start + SEGMENT_BYTES], _PUSH | _ACK)

    def _packet(self, source: tuple[bytes, int], target: tuple[bytes, int], data: bytes, flags: int) -> None:
        acknowledged = self._next[target] if flags & _ACK else 0
        numbers = (source[1], target[1], self._next[source], acknowledged, 5 << 4, flags, 0xFFFF)
        bare = struct.pack(">HHIIBBHHH", *numbers, 0, 0) + data
        pseudo = source[0] + target[0] + struct.pack(">BBH", 0, _TCP, len(bare))
        tcp = struct.pack(">HHIIBBHHH", *numbers, checksum(pseudo + bare), 0) + data
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), len(self._records), 0, 64, _TCP, 0)
        head += source[0] + target[0]
        ip = head[:10] + struct.pack(">H", checksum(head)) + head[12:]
        frame = bytes(12) + b"\x08\x00" + ip + tcp
        seconds, millionths = divmod(len(self._records), 1000)
        self._records.append(struct.pack("<IIII", seconds, millionths, len(frame), len(frame)) + frame)
        self._next[source] += len(data) + bool(flags & _SYN)

    def write(self, path: Path) -> None:
        """Write the file."""
        path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, _ETHERNET) + b"".join(self._records))


def write_pcap(path: Path, messages: Iterable[bytes]) -> None:
    """Write messages of one connection; what has the magic of an answer or of a push comes from the server."""
    connection = Connection()
    for message in messages:
        connection.send(message, from_server=message[0] in (0x81, 0x18, 0x82))
    connection.write(path)
