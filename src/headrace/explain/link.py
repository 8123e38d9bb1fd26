"""From a captured packet down to TCP.

Understood are Ethernet with VLAN tags, Linux cooked, loopback and raw IP; and IPv4 and IPv6.

What is no TCP over IP is passed over in silence, as any capture is full of it. What would be TCP and cannot
be followed is counted by a sentence: fragments, and link types not known here.
"""

import ipaddress
import struct
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from headrace.explain.pcap import Packet

_ETHERTYPE_IPV4, _ETHERTYPE_IPV6 = 0x0800, 0x86DD
_ETHERTYPES_VLAN = frozenset({0x8100, 0x88A8, 0x9100})
_LINK_NULL, _LINK_ETHERNET, _LINK_LOOP, _LINK_SLL, _LINK_SLL2 = 0, 1, 108, 113, 276
_LINKS_RAW = frozenset({12, 14, 101, 228, 229})  # 12 and 14 are what BSDs call 101
_FAMILY_IPV4 = 2
_FAMILIES_IPV6 = frozenset({10, 24, 28, 30})  # Linux, the BSDs and macOS each have their own number
_PROTOCOL_TCP = 6
_TCP_HEADER_BYTES_MIN = 20
# Hop-by-hop, routing, destination options, mobility, HIP, shim6: each says its length in units of 8 bytes.
_IPV6_EXTENSIONS = frozenset({0, 43, 60, 135, 139, 140})
_IPV6_FRAGMENT, _IPV6_AUTHENTICATION = 44, 51

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

Endpoint = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Segment:
    """One TCP segment. `missing`: bytes at its end that were sent and not captured."""

    number: int
    source: Endpoint
    target: Endpoint
    seq: int
    flags: int
    data: bytes
    missing: int


class Decapsulator:
    """Takes packets apart. `passed_over` counts, by reason, those that might have mattered."""

    def __init__(self) -> None:
        self.passed_over: Counter[str] = Counter()

    def segment(self, packet: Packet) -> Segment | None:
        """Return the TCP segment in a packet, None where there is none or too little of it was captured."""
        try:
            found = _network_layer(packet)
            if found is None:
                return None
            return self._ip(packet.number, *found)
        except _Unknown as reason:
            self.passed_over[str(reason)] += 1
        except (struct.error, IndexError, ValueError):  # ValueError: half an address
            self.passed_over["packets cut off inside their headers"] += 1
        return None

    def _ip(self, number: int, ethertype: int, data: bytes) -> Segment | None:
        if ethertype == _ETHERTYPE_IPV4:
            return _ipv4(number, data)
        if ethertype == _ETHERTYPE_IPV6:
            return _ipv6(number, data)
        return None


class _Unknown(Exception):  # noqa: N818 - no error: a reason to pass a packet over
    pass


def _network_layer(packet: Packet) -> tuple[int, bytes] | None:
    """Strip the link layer: an ethertype and what it carries."""
    data, link_type = packet.data, packet.link_type
    if link_type == _LINK_ETHERNET:
        return _untag(_u16(data, 12), data, 14)
    if link_type == _LINK_SLL:
        return _untag(_u16(data, 14), data, 16)
    if link_type == _LINK_SLL2:
        return _untag(_u16(data, 0), data, 20)
    if link_type in _LINKS_RAW:
        return _by_version(data)
    if link_type in (_LINK_NULL, _LINK_LOOP):
        # In the byte order of whoever captured; families are small, so the larger reading is the wrong one.
        family = min(struct.unpack_from(">I", data)[0], struct.unpack_from("<I", data)[0])
        if family == _FAMILY_IPV4:
            return _ETHERTYPE_IPV4, data[4:]
        return (_ETHERTYPE_IPV6, data[4:]) if family in _FAMILIES_IPV6 else None
    raise _Unknown(f"packets of link type {link_type}, which is not known here")


def _untag(ethertype: int, data: bytes, start: int) -> tuple[int, bytes]:
    while ethertype in _ETHERTYPES_VLAN:
        ethertype = _u16(data, start + 2)
        start += 4
    return ethertype, data[start:]


def _by_version(data: bytes) -> tuple[int, bytes] | None:
    kinds = {4: _ETHERTYPE_IPV4, 6: _ETHERTYPE_IPV6}
    ethertype = kinds.get(data[0] >> 4)
    return None if ethertype is None else (ethertype, data)


def _u16(data: bytes, offset: int) -> int:
    value: int = struct.unpack_from(">H", data, offset)[0]
    return value


@lru_cache(maxsize=4096)
def _address(data: bytes) -> str:
    return str(ipaddress.ip_address(data))


def _ipv4(number: int, data: bytes) -> Segment | None:
    header_bytes = (data[0] & 0x0F) * 4
    total, fragment = struct.unpack_from(">2xH2xH", data)
    if data[9] != _PROTOCOL_TCP:
        return None
    if fragment & 0x3FFF:  # more fragments follow, or this is a later one
        raise _Unknown("IPv4 fragments, which are not put together")
    addresses = _address(data[12:16]), _address(data[16:20])
    # A network card that cuts segments itself hands packets of length 0 to the capture.
    sent = total - header_bytes if total else len(data) - header_bytes
    return _tcp(number, addresses, data[header_bytes:], sent)


def _ipv6(number: int, data: bytes) -> Segment | None:
    payload, protocol = struct.unpack_from(">4xHB", data)
    addresses = _address(data[8:24]), _address(data[24:40])
    start = 40
    while protocol != _PROTOCOL_TCP:
        if protocol == _IPV6_FRAGMENT:
            if _u16(data, start + 2) & 0xFFF9:  # an offset, or more to come
                raise _Unknown("IPv6 fragments, which are not put together")
            protocol, start = data[start], start + 8
        elif protocol == _IPV6_AUTHENTICATION:
            protocol, start = data[start], start + (data[start + 1] + 2) * 4
        elif protocol in _IPV6_EXTENSIONS:
            protocol, start = data[start], start + (data[start + 1] + 1) * 8
        else:
            return None
    sent = payload + 40 - start if payload else len(data) - start
    return _tcp(number, addresses, data[start:], sent)


def _tcp(number: int, addresses: tuple[str, str], data: bytes, sent: int) -> Segment | None:
    source_port, target_port, seq, offset, flags = struct.unpack_from(">HHI4xBB", data)
    header_bytes = (offset >> 4) * 4
    if not _TCP_HEADER_BYTES_MIN <= header_bytes <= sent:
        return None
    payload = data[header_bytes:sent]  # without the padding of short Ethernet frames
    source, target = (addresses[0], source_port), (addresses[1], target_port)
    missing = sent - header_bytes - len(payload)
    return Segment(number, source, target, seq, flags, payload, missing)
