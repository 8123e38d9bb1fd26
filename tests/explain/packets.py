"""Messages and packet captures made by hand, for tests of the readers."""

import struct
from collections.abc import Sequence

CLIENT = ("10.0.0.1", 50000)
SERVER = ("10.0.0.2", 11210)
SYN, ACK, FIN, RST = 0x02, 0x10, 0x01, 0x04

MUTATION = bytes.fromhex(
    "805700051f0002100000002900001210000000000000000000000000000000040000000000000001"
    "000000000000000000000000000000"
    "68656c6c6f776f726c64"
)
UPR_MUTATION = bytes.fromhex(
    "805700051e0002100000002800001210000064a5acec8a5600000000000000040000000000000001"
    "0000000000000000000000000000"
    "68656c6c6f776f726c64"
)
TAP_CONNECT = bytes.fromhex("80400005040000000000000900000000000000000000000000000000") + b"node1"
DRAFT_STREAM = bytes.fromhex("8050000e2801000c000000360000002d0000000000000000") + bytes(40) + b"replication_12"
# The stream request of the documents: its header says 40 bytes of extras, it has 48.
CONTRADICTORY = bytes.fromhex(
    "8053000028000000000000280000100000000000000000000000000000000000"
    "0000000000ffeeddffffffffffffffff00000000feeddeca00000000000000000000000000ffeeff"
)
NOOP = bytes.fromhex("800a00000000000000000000000000070000000000000000")
NOOP_ANSWER = bytes.fromhex("810a00000000000000000000000000070000000000000000")


def set_message(key: bytes, value: bytes, opaque: int = 0) -> bytes:
    """Build a SET request."""
    header = struct.pack(">BBHBBHIIQ", 0x80, 1, len(key), 8, 0, 0, 8 + len(key) + len(value), opaque, 0)
    return header + bytes(8) + key + value


def tcp(seq: int, data: bytes = b"", *, flags: int = ACK, ports: tuple[int, int] = (50000, 11210)) -> bytes:
    """Build a TCP segment."""
    return struct.pack(">HHIIBBHHH", *ports, seq % 2**32, 0, 5 << 4, flags, 65535, 0, 0) + data


def ipv4(payload: bytes, *, back: bool = False, fragment: int = 0, protocol: int = 6) -> bytes:
    """Build an IPv4 packet from 10.0.0.1 to 10.0.0.2, or back."""
    ends = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
    source, target = reversed(ends) if back else ends
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 1, fragment, 64, protocol, 0)
    return head + source + target + payload


def ipv6(payload: bytes, *, next_header: int = 6) -> bytes:
    """Build an IPv6 packet from ::1 to ::2."""
    ends = bytes(15) + b"\x01" + bytes(15) + b"\x02"
    return struct.pack(">IHBB", 6 << 28, len(payload), next_header, 64) + ends + payload


def ethernet(payload: bytes, *, ethertype: int = 0x0800, tags: Sequence[int] = ()) -> bytes:
    """Build an Ethernet frame, padded to its least length, with VLAN tags of the given types."""
    marks = b"".join(struct.pack(">HH", tag, 7) for tag in tags)
    frame = bytes(12) + marks + struct.pack(">H", ethertype) + payload
    return frame.ljust(60, b"\x00")


def pcap(packets: Sequence[bytes], *, link_type: int = 1, order: str = "<", nanoseconds: bool = False) -> bytes:
    """Build a pcap file."""
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    head = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 262144, link_type)
    records = (struct.pack(order + "IIII", 1, 2, len(each), len(each)) + each for each in packets)
    return head + b"".join(records)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """Build a pcapng block."""
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def pcapng(packets: Sequence[bytes], *, link_type: int = 1, order: str = "<", simple: bool = False) -> bytes:
    """Build a pcapng file of one section, with an unknown block in it."""
    section = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)
    interface = block(1, struct.pack(order + "HHI", link_type, 0, 0), order)
    blocks = [section, interface, block(0x0BAD, b"whatever", order)]
    for each in packets:
        if simple:
            blocks.append(block(3, struct.pack(order + "I", len(each)) + each, order))
        else:
            blocks.append(block(6, struct.pack(order + "IIIII", 0, 1, 2, len(each), len(each)) + each, order))
    return b"".join(blocks)


def one_way(*segments: bytes, **options: object) -> bytes:
    """Build a pcap of Ethernet packets from client to server."""
    return pcap([ethernet(ipv4(segment)) for segment in segments], **options)  # type: ignore[arg-type]
