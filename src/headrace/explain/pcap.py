"""Packets out of capture files: pcap in both byte orders with micro- and nanoseconds, and pcapng.

Only what is needed to follow TCP is read: the link type and the bytes of each packet. A record that cannot
be right ends the reading with a fault, for nothing after it can be trusted; the packets before it were
given.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.explain.events import Fault, InputError, counted
from headrace.explain.limits import PACKET_BYTES_MAX, PACKETS_MAX, SPLIT_CAPTURE, size
from headrace.explain.source import Source

_PCAP_ORDERS = {
    b"\xa1\xb2\xc3\xd4": ">",
    b"\xd4\xc3\xb2\xa1": "<",
    b"\xa1\xb2\x3c\x4d": ">",
    b"\x4d\x3c\xb2\xa1": "<",
}
_SECTION_MAGIC = b"\x0a\x0d\x0d\x0a"
_ORDER_MAGIC = 0x1A2B3C4D
_INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _ENHANCED_PACKET = 1, 2, 3, 6
_PCAP_HEADER_BYTES, _RECORD_HEADER_BYTES = 24, 16
_BLOCK_BYTES_MIN = 12
_BLOCK_BYTES_MAX = PACKET_BYTES_MAX + (1 << 16)


@dataclass(frozen=True, slots=True)
class Packet:
    """One captured packet: its number as Wireshark counts, what kind of link it came from, its bytes."""

    number: int
    link_type: int
    data: bytes


def is_pcap(head: bytes) -> bool:
    """Tell whether a file that starts so is a pcap or pcapng."""
    return head[:4] in _PCAP_ORDERS or head[:4] == _SECTION_MAGIC


def read_packets(source: Source) -> Iterator[Packet | Fault]:
    """Yield the packets of a capture file of either format."""
    packets = _read_pcapng(source) if source.peek(4) == _SECTION_MAGIC else _read_pcap(source)
    for found in packets:
        if isinstance(found, Packet) and found.number > PACKETS_MAX:
            raise InputError(
                f"{source.name} has more than {PACKETS_MAX} packets, the most that are read; split it: {SPLIT_CAPTURE}"
            )
        yield found


def _fault(source: Source, offset: int, text: str) -> Fault:
    return Fault(origin=f"byte {offset} of {source.name}", text=f"{text}; the rest of the file is not read")


def _read_pcap(source: Source) -> Iterator[Packet | Fault]:
    header = source.read(_PCAP_HEADER_BYTES)
    if len(header) < _PCAP_HEADER_BYTES:
        yield _fault(source, 0, f"the file header needs {_PCAP_HEADER_BYTES} bytes, the file has {len(header)}")
        return
    order = _PCAP_ORDERS[header[:4]]
    # The upper bits say how long the checksum at the end of each packet is.
    link_type = struct.unpack(order + "I", header[20:])[0] & 0xFFFF
    record = struct.Struct(order + "8xII")
    number = 0
    while True:
        offset = source.offset
        head = source.read(_RECORD_HEADER_BYTES)
        if not head:
            return
        if len(head) < _RECORD_HEADER_BYTES:
            yield _fault(source, offset, "the file ends inside a record header")
            return
        length, _ = record.unpack(head)
        if length > PACKET_BYTES_MAX:
            limit = f"a packet has at most {size(PACKET_BYTES_MAX)}"
            yield _fault(source, offset, f"a record claims {length} bytes; {limit}")
            return
        data = source.read(length)
        number += 1
        yield Packet(number, link_type, data)
        if len(data) < length:
            yield _fault(source, offset, f"a record claims {counted(length, 'byte')}, the file ends after {len(data)}")
            return


def _read_pcapng(source: Source) -> Iterator[Packet | Fault]:
    section = _Section(">")
    number = 0
    while True:
        offset = source.offset
        head = source.read(8)
        if not head:
            return
        if head[:4] == _SECTION_MAGIC:
            order = _section_order(source.peek(4))
            if order is None:
                yield _fault(source, offset, "a section header without a byte-order mark")
                return
            section = _Section(order)
        if len(head) < 8:  # noqa: PLR2004 - a block begins with its type and its length
            yield _fault(source, offset, "the file ends inside a block header")
            return
        kind, length = struct.unpack(section.order + "II", head)
        if length < _BLOCK_BYTES_MIN or length % 4 or length > _BLOCK_BYTES_MAX:
            yield _fault(source, offset, f"a block claims {counted(length, 'byte')}")
            return
        body = source.read(length - 8)
        if len(body) < length - 8:
            there = len(body) + 8
            yield _fault(source, offset, f"a block claims {length} bytes, the file ends after {there}")
            return
        found = section.block(kind, body[:-4])
        if isinstance(found, str):
            yield _fault(source, offset, found)
            return
        if found is not None:
            number += 1
            yield Packet(number, *found)


def _section_order(mark: bytes) -> str | None:
    for order in "<>":
        if mark == struct.pack(order + "I", _ORDER_MAGIC):
            return order
    return None


class _Section:
    """The interfaces of one section, by which its packets are understood."""

    def __init__(self, order: str) -> None:
        self.order = order
        self._interfaces: list[tuple[int, int]] = []  # link type, snap length

    def block(self, kind: int, body: bytes) -> tuple[int, bytes] | str | None:
        """Take one block: link type and bytes if it is a packet, a sentence if it is damaged."""
        try:
            return self._block(kind, body)
        except struct.error:
            return f"a block of type {kind} is too short for its fields"

    def _block(self, kind: int, body: bytes) -> tuple[int, bytes] | str | None:
        if kind == _INTERFACE:
            link_type, snap_length = struct.unpack_from(self.order + "H2xI", body)
            self._interfaces.append((link_type, snap_length))
            return None
        if kind == _ENHANCED_PACKET:
            interface, length = struct.unpack_from(self.order + "I8xI4x", body)
            return self._packet(interface, length, body[20:])
        if kind == _OLD_PACKET:
            interface, length = struct.unpack_from(self.order + "H2x8xI4x", body)
            return self._packet(interface, length, body[20:])
        if kind == _SIMPLE_PACKET:
            (length,) = struct.unpack_from(self.order + "I", body)
            snap_length = self._interfaces[0][1] if self._interfaces else 0
            return self._packet(0, min(length, snap_length or length, len(body) - 4), body[4:])
        return None  # names, statistics, secrets and what others invent

    def _packet(self, interface: int, length: int, data: bytes) -> tuple[int, bytes] | str:
        if interface >= len(self._interfaces):
            return f"a packet names interface {interface}; the file describes {len(self._interfaces)}"
        if length > len(data):
            return f"a packet claims {counted(length, 'byte')}, its block holds {len(data)}"
        return self._interfaces[interface][0], data[:length]
