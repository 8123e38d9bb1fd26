import struct

import pytest

from headrace.explain import pcap as pcap_module
from headrace.explain import tcp as tcp_module
from headrace.explain.events import InputError
from headrace.explain.limits import REASSEMBLY_BYTES_MAX
from headrace.explain.link import Segment
from tests.explain.packets import (
    ACK,
    FIN,
    MUTATION,
    NOOP,
    NOOP_ANSWER,
    RST,
    SYN,
    block,
    ethernet,
    ipv4,
    ipv6,
    one_way,
    pcap,
    pcapng,
    set_message,
    tcp,
)
from tests.explain.tools import messages, names, shown, texts


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [False, True])
def test_pcap_of_both_orders_and_clocks(order: str, nanoseconds: bool) -> None:
    """A pcap is read in either byte order, with micro- and nanoseconds."""
    found = messages(pcap([ethernet(ipv4(tcp(1, NOOP)))], order=order, nanoseconds=nanoseconds))
    assert names(found) == ["noop"]
    assert found[0].origin == "frame 1 of standard input"
    assert found[0].connection == "10.0.0.1:50000-10.0.0.2:11210"
    assert found[0].direction == "c2s"


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("simple", [False, True])
def test_pcapng_of_both_orders(order: str, simple: bool) -> None:
    """A pcapng is read in either byte order, from enhanced and from simple packet blocks."""
    packets = [ethernet(ipv4(tcp(1, NOOP))), ethernet(ipv4(tcp(25, MUTATION)))]
    assert names(messages(pcapng(packets, order=order, simple=simple))) == ["noop", "mutation"]


def test_pcapng_with_two_sections() -> None:
    """A second section brings its own byte order and its own interfaces."""
    first = pcapng([ethernet(ipv4(tcp(1, NOOP)))], order="<")
    second = pcapng([ipv4(tcp(25, NOOP))], order=">", link_type=101)
    assert names(messages(first + second)) == ["noop", "noop"]


def test_pcapng_obsolete_packet_block() -> None:
    """The packet block of early pcapng files is read, too."""
    packet = ethernet(ipv4(tcp(1, NOOP)))
    old = block(2, struct.pack("<HHIIII", 0, 0, 1, 2, len(packet), len(packet)) + packet)
    assert names(messages(pcapng([]) + old)) == ["noop"]


_PAYLOAD = ipv4(tcp(1, NOOP))
LINKS = {
    "ethernet": (1, ethernet(_PAYLOAD)),
    "one VLAN tag": (1, ethernet(_PAYLOAD, tags=[0x8100])),
    "two VLAN tags": (1, ethernet(_PAYLOAD, tags=[0x88A8, 0x8100])),
    "raw": (101, _PAYLOAD),
    "raw IPv4": (228, _PAYLOAD),
    "raw IPv6": (229, ipv6(tcp(1, NOOP))),
    "null, little-endian": (0, struct.pack("<I", 2) + _PAYLOAD),
    "null, big-endian IPv6": (0, struct.pack(">I", 30) + ipv6(tcp(1, NOOP))),
    "loop": (108, struct.pack(">I", 2) + _PAYLOAD),
    "cooked v1": (113, bytes(14) + b"\x08\x00" + _PAYLOAD),
    "cooked v2": (276, b"\x08\x00" + bytes(18) + _PAYLOAD),
    "IPv6": (1, ethernet(ipv6(tcp(1, NOOP)), ethertype=0x86DD)),
    "IPv6 hop-by-hop": (101, ipv6(b"\x06\x00" + bytes(6) + tcp(1, NOOP), next_header=0)),
    "IPv6 authentication": (101, ipv6(b"\x06\x04" + bytes(22) + tcp(1, NOOP), next_header=51)),
    "IPv6 atomic fragment": (101, ipv6(b"\x06" + bytes(7) + tcp(1, NOOP), next_header=44)),
}


@pytest.mark.parametrize("name", LINKS)
def test_link_types(name: str) -> None:
    """Every link type and extension header leads to the same message."""
    link_type, packet = LINKS[name]
    assert names(messages(pcap([packet], link_type=link_type))) == ["noop"]


@pytest.mark.parametrize(
    ("link_type", "packet", "words"),
    [
        (101, ipv4(tcp(1, NOOP), fragment=0x2000), "IPv4 fragments"),
        (101, ipv6(b"\x06\x00\x00\x01" + bytes(4) + tcp(1, NOOP), next_header=44), "IPv6 fragments"),
        (147, ipv4(tcp(1, NOOP)), "link type 147"),
        (101, ipv4(tcp(1, NOOP))[:18], "cut off inside their headers"),
    ],
)
def test_packets_passed_over_are_counted(link_type: int, packet: bytes, words: str) -> None:
    """What might have mattered and cannot be read is named in a note."""
    assert any(words in text for text in texts(shown(pcap([packet], link_type=link_type))))


@pytest.mark.parametrize("packet", [ipv4(b"x", protocol=17), ipv6(b"x", next_header=58), b"\x00", ipv4(bytes(20))])
def test_other_packets_are_silent(packet: bytes) -> None:
    """What is no TCP gives no message, and no fault."""
    assert messages(pcap([packet], link_type=101)) == []


def test_out_of_order_retransmission_and_overlap() -> None:
    """Segments are put in order; what comes twice counts once."""
    stream = NOOP + MUTATION + NOOP
    data = one_way(
        tcp(999, flags=SYN),
        tcp(1050, stream[50:]),
        tcp(1000, stream[:30]),
        tcp(1000, stream[:30]),
        tcp(1020, stream[20:60]),
    )
    found = messages(data)
    assert names(found) == ["noop", "mutation", "noop"]
    assert not any(each.problems for each in found)
    assert [each.origin.split(" of ")[0] for each in found] == ["frame 3", "frame 3", "frame 2"]


def test_sequence_numbers_wrap() -> None:
    """A stream goes on past the largest sequence number."""
    start = 2**32 - 10
    assert names(messages(one_way(tcp(start, NOOP), tcp(start + 24, NOOP)))) == ["noop", "noop"]


def test_gap_inside_a_message_keeps_the_next() -> None:
    """Bytes missing inside one message spoil only that one, for its header says where the next begins."""
    long = set_message(b"key", b"v" * 200)
    stream = long + NOOP
    found = messages(one_way(tcp(1, stream[:100]), tcp(151, stream[150:])))
    assert names(found) == ["set", "noop"]
    assert "50 bytes are missing" in found[0].problems[-1].text
    assert not found[1].problems


def test_a_gap_of_one_byte() -> None:
    """One byte is missing, not are."""
    long = set_message(b"key", b"v" * 200)
    found = messages(one_way(tcp(1, long[:100]), tcp(102, long[101:])))
    assert found[0].problems[-1].text == "1 byte is missing from the input here"


def test_gap_over_a_boundary_resynchronises() -> None:
    """Where a header is missing, reading goes on at the next one that makes sense."""
    stream = NOOP + set_message(b"key", b"v" * 20) + MUTATION + NOOP
    found = messages(one_way(tcp(1, stream[:24]), tcp(31, stream[30:])))
    assert names(found) == ["noop", "unreadable", "unreadable", "mutation", "noop"]
    assert "6 bytes are missing" in found[1].problems[0].text
    assert "begin no message" in found[2].problems[0].text


def test_gap_that_reaches_into_the_next_message() -> None:
    """A hole that begins in one message and ends in another loses both, and no third."""
    first, second = set_message(b"a", b"x" * 80), set_message(b"b", b"y" * 80)
    stream = first + second + NOOP + NOOP
    cut, resumed = 60, len(first) + 40
    found = messages(one_way(tcp(1, stream[:cut]), tcp(1 + resumed, stream[resumed:])))
    assert names(found) == ["set", "unreadable", "noop", "noop"]


def test_truncated_packets() -> None:
    """A capture with short packets (-s 96) still finds every header."""
    long = set_message(b"key", b"v" * 200)
    whole = ethernet(ipv4(tcp(1, long)))
    again = ethernet(ipv4(tcp(1 + len(long), NOOP)))
    found = messages(pcap([whole[:120], again]))
    assert names(found) == ["set", "noop"]
    assert "bytes are missing" in found[0].problems[-1].text


def test_a_hole_is_given_up_when_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost segment does not hold back the rest of a long capture."""
    monkeypatch.setattr(tcp_module, "REASSEMBLY_BYTES_MAX", 100)
    assert REASSEMBLY_BYTES_MAX > 100
    half = tcp_module.Half()
    half.begin(0)
    runs = []
    for place in range(10, 250, 24):
        segment = Segment(1, ("a", 1), ("b", 2), place, ACK, NOOP, 0)
        runs += list(half.add(segment))
    assert runs[0] == (b"", 10, 1)
    assert len(runs) > 5


def test_both_directions_and_server_by_syn() -> None:
    """Who receives the SYN is the server, even on an unknown port."""
    ports, back = (50000, 60000), (60000, 50000)
    packets = [
        ipv4(tcp(99, flags=SYN, ports=ports)),
        ipv4(tcp(499, flags=SYN | ACK, ports=back), back=True),
        ipv4(tcp(100, NOOP, ports=ports)),
        ipv4(tcp(500, NOOP_ANSWER, ports=back), back=True),
    ]
    found = messages(pcap(packets, link_type=101))
    assert [(each.message, each.direction) for each in found] == [("noop", "c2s"), ("noop", "s2c")]
    assert found[0].connection == "10.0.0.1:50000-10.0.0.2:60000"


def test_server_by_port() -> None:
    """A named port makes its side the server and leaves other connections out."""
    packets = [
        ipv4(tcp(1, NOOP_ANSWER, ports=(60000, 50000))),
        ipv4(tcp(1, NOOP, ports=(40000, 11210))),
    ]
    found = messages(pcap(packets, link_type=101), port=60000)
    assert [(each.direction, each.connection) for each in found] == [("s2c", "10.0.0.2:50000-10.0.0.1:60000")]


def test_server_by_lower_port() -> None:
    """Without any other sign the lower port is the server's."""
    found = messages(pcap([ipv4(tcp(1, NOOP_ANSWER, ports=(5000, 50000)))], link_type=101))
    assert [each.direction for each in found] == ["s2c"]


@pytest.mark.parametrize(
    ("data", "port", "words"),
    [(b"GET / HTTP/1.1\r\n", 8091, "no message of this family"), (b"\x16\x03\x01\x00\x05", 11207, "TLS")],
)
def test_connections_passed_over(data: bytes, port: int, words: str) -> None:
    """A connection that speaks something else is passed over with a note."""
    found = shown(pcap([ipv4(tcp(1, data, ports=(50000, port)))], link_type=101))
    assert any(words in text for text in texts(found))


def test_ports_used_again() -> None:
    """A new SYN on the same ports is another connection with a name of its own."""
    packets = [
        tcp(99, flags=SYN),
        tcp(100, NOOP),
        tcp(99, flags=SYN),
        tcp(124, NOOP),
        tcp(5000, flags=SYN),
        tcp(5001, NOOP),
    ]
    found = messages(one_way(*packets))
    assert [each.connection.partition("#")[2] for each in found] == ["", "", "2"]


@pytest.mark.parametrize("flags", [RST, FIN | ACK])
def test_the_end_of_a_connection(flags: int) -> None:
    """After both sides said farewell, or one broke off, stray segments are ignored."""
    packets = [
        ipv4(tcp(1, NOOP)),
        ipv4(tcp(25, flags=flags)),
        ipv4(tcp(1, flags=flags, ports=(11210, 50000)), back=True),
        ipv4(tcp(25, NOOP)),
    ]
    assert names(messages(pcap(packets, link_type=101))) == ["noop"]


def test_garbage_in_a_stream() -> None:
    """Bytes that begin no message are reported with their number, and the next message is found."""
    found = messages(one_way(tcp(1, NOOP + b"\x01\x02\x03" + MUTATION + NOOP)))
    assert names(found) == ["noop", "unreadable", "mutation", "noop"]
    assert found[1].problems[0].text.startswith("3 bytes begin no message")


def test_a_header_that_promises_too_much() -> None:
    """In a stream, a body of 4 GiB is no header to wait for."""
    liar = bytes.fromhex("80010000000000 00ffffffff000000000000000000000000")
    found = messages(one_way(tcp(1, liar + NOOP + NOOP)))
    assert names(found) == ["unreadable", "noop", "noop"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pcap([])[:10], "file header needs 24 bytes"),
        (pcap([NOOP])[:30], "ends inside a record header"),
        (pcap([NOOP])[:-3], "the file ends after 21"),
        (pcap([]) + struct.pack("<IIII", 0, 0, 2**31, 1), "at most 1 MiB (1048576 bytes)"),
        (pcapng([])[:6], "section header without"),
        (pcapng([]) + b"\x06\x00\x00", "ends inside a block header"),
        (pcapng([]) + struct.pack("<II", 6, 7), "claims 7 bytes"),
        (pcapng([]) + struct.pack("<II", 6, 64), "the file ends after 8"),
        (pcapng([]) + block(6, struct.pack("<IIIII", 9, 0, 0, 0, 0)), "names interface 9"),
        (pcapng([]) + block(6, struct.pack("<IIIII", 0, 0, 0, 400, 0)), "its block holds 0"),
        (pcapng([]) + block(6, b"abcd"), "too short for its fields"),
        (b"\x0a\x0d\x0d\x0a\x00\x00\x00\x1cxxxx", "without a byte-order mark"),
    ],
)
def test_damaged_files(data: bytes, words: str) -> None:
    """A damaged capture file ends with a fault that says where and what."""
    assert any(words in text for text in texts(shown(data)))


def test_packets_before_the_damage_are_read() -> None:
    """What stands before a damaged record is explained."""
    found = shown(pcap([ethernet(ipv4(tcp(1, NOOP)))]) + b"\x01")
    assert len(found) == 2


def test_limits_are_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many packets or connections are refused with the limit and the way out."""
    data = one_way(tcp(1, NOOP), tcp(1, NOOP, ports=(50001, 11210)))
    monkeypatch.setattr(tcp_module, "CONNECTIONS_MAX", 1)
    with pytest.raises(InputError, match=r"more than 1 connections, .* --port, or split it: editcap -c"):
        shown(data)
    monkeypatch.setattr(pcap_module, "PACKETS_MAX", 1)
    with pytest.raises(InputError, match=r"more than 1 packets, .* split it: editcap -c"):
        shown(data)
