"""Wireshark's couchbase dissector, a stranger's reading of the protocol, finds nothing wrong with our frames.

What it does find is listed in EXCUSED, each with the reason why it is its own limit (tshark 4.0 as Debian has it). The
reasons were held against the sources of Couchbase's kv_engine (`kv:`) or against frames of real servers.
"""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.wire import Dialect, Frame, catalogue, decode, encode
from headrace.wire.codes import Magic, Status
from headrace.wire.header import RESPONSE_MAGICS, whole_frame
from headrace.wire.limits import BODY_BYTES_MAX
from tests.wire.pcap_writer import SEGMENT_BYTES, SERVER, write_pcap
from tests.wire.strategies import CASES, sample
from tests.wire.test_captures import well_formed
from tests.wire.vectors import documents, handmade

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")

WARNINGS = {
    "malformed": "_ws.malformed",
    "extras": "couchbase.warn.illegal_extras_length",
    "magic": "couchbase.warn.unknown_magic_byte",
    "unexplained extras": "couchbase.warn.unknown_extras",
    "value length": "couchbase.warn.illegal_value_length",
    "no value allowed": "couchbase.warn.shall_not_have_value",
    "no extras allowed": "couchbase.warn.shall_not_have_extras",
    "no key allowed": "couchbase.warn.shall_not_have_key",
    "extras wanted": "couchbase.warn.must_have_extras",
    "key wanted": "couchbase.warn.must_have_key",
    "value wanted": "couchbase.value_missing",
}
UNKNOWN_OPCODE = "Unknown opcode"  # looked for in its words: the field couchbase.warn.unknown_opcode marks every error
VALUES = {
    "opcode": "couchbase.opcode",
    "server_opcode": "couchbase.server.opcode",
    "vbucket": "couchbase.vbucket",
    "key_length": "couchbase.key.length",
    "by_seqno": "couchbase.extras.by_seqno",
    "rev_seqno": "couchbase.extras.rev_seqno",
    "flags": "couchbase.extras.flags",
    "expiry": "couchbase.extras.expiration",
    "start_seqno": "couchbase.extras.start_seqno",
    "end_seqno": "couchbase.extras.end_seqno",
}
HANDSHAKE_PACKETS = 3
Seen = dict[int, dict[str, str]]
READ_ALIKE = (
    catalogue.Mutation,
    catalogue.Deletion,
    catalogue.Prepare,
    catalogue.SeqnoAdvanced,
    catalogue.SystemEvent,
    catalogue.SnapshotMarker,
    catalogue.StreamRequest,
    catalogue.Set,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A frame that was written to the capture, and the packet in which it ends."""

    name: str
    frame: Frame
    packet: int

    @property
    def is_answer(self) -> bool:
        """Whether it answers something."""
        return self.frame.header.magic in (*RESPONSE_MAGICS, Magic.SERVER_RESPONSE)

    @property
    def failed(self) -> bool:
        """Whether it says that something was not done."""
        return self.is_answer and self.frame.header.specific != Status.SUCCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Excuse:
    """A complaint of the dissector that is its own limit, by opcode and form of the message."""

    warning: str
    opcodes: frozenset[int]
    extras: frozenset[int] | None = None
    answer: bool = False
    only_failed: bool = False
    server: bool = False

    def covers(self, sent: Sent, warning: str) -> bool:
        """Whether this is about that complaint."""
        header = sent.frame.header
        return (
            warning == self.warning
            and header.opcode in self.opcodes
            and sent.is_answer is self.answer
            and (self.extras is None or header.extras_length in self.extras)
            and (sent.failed or not self.only_failed)
            and (header.magic in (Magic.SERVER_REQUEST, Magic.SERVER_RESPONSE)) is self.server
        )


ANY = frozenset(range(0x100))
EXCUSED = (
    # TAP's messages: the dissector names them but gives them no extras, and takes engine bytes for the key.
    Excuse(warning="extras", opcodes=frozenset(range(0x41, 0x48)), extras=frozenset({8, 16})),
    # TAP connect without extras; both captured servers take it (08a2_tap_no_extras).
    Excuse(warning="malformed", opcodes=frozenset({0x40}), extras=frozenset({0})),
    # Snapshot marker v2.2 is newer than this dissector (kv: docs/dcp/documentation/commands/snapshot-marker.md).
    Excuse(warning="malformed", opcodes=frozenset({0x56}), extras=frozenset({1})),
    # Get all vb seqnos of a collection (kv: get_all_vb_seqnos_validator takes 0, 4 or 8 bytes).
    Excuse(warning="extras", opcodes=frozenset({0x48}), extras=frozenset({8})),
    # A consumer that opens gives its name as JSON (kv: dcp_open_validator, any value that is a JSON object).
    Excuse(warning="no value allowed", opcodes=frozenset({0x50}), extras=frozenset({8})),
    # Metadata behind the key of a deletion or an expiration: a real server sends it (capture 06d_dcp_ext_metadata),
    # and in 07b_consumer_errors a client tries a value.
    Excuse(warning="no value allowed", opcodes=frozenset({0x58, 0x59}), extras=frozenset({18})),
    # Flush is drawn without extras (upr-transport.md:1026, kv: docs/dcp/documentation/commands/flush.md).
    Excuse(warning="extras wanted", opcodes=frozenset({0x5A}), extras=frozenset({0})),
    # "May have a value" (kv: docs/dcp/documentation/commands/set-vbucket-state.md); the server's validator wants none.
    Excuse(warning="no value allowed", opcodes=frozenset({0x5B}), extras=frozenset({1})),
    # The end of a collection and the drop of a scope have no key (kv: docs/dcp/documentation/commands/system_event.md).
    Excuse(warning="key wanted", opcodes=frozenset({0x5F}), extras=frozenset({13})),
    # Uuid and seqno in answers to with-meta and multi-path writes, once hello agreed on them (kv: ep_engine.cc,
    # setWithMeta; daemon/subdocument.cc, isSupportsMutationExtras); the dissector knows them from plain writes only.
    Excuse(
        warning="extras", opcodes=frozenset({0xA2, 0xA3, 0xA8, 0xA9, 0xD0, 0xD1}), extras=frozenset({16}), answer=True
    ),
    # User flags beside the expiry of a multi-path write (kv: daemon/subdocument_parser.h takes 8 and 9 bytes).
    Excuse(warning="no extras allowed", opcodes=frozenset({0xD1}), extras=frozenset({8, 9})),
    # A rollback with its seqno as extras, as UPR draws it; it is read and never sent by choice.
    Excuse(warning="extras", opcodes=frozenset({0x53}), extras=frozenset({8}), answer=True, only_failed=True),
    # It wants a success's extras, key and value in every answer; servers send errors without (any capture with one).
    Excuse(warning="extras wanted", opcodes=ANY, extras=frozenset({0}), answer=True, only_failed=True),
    Excuse(warning="value wanted", opcodes=ANY, answer=True, only_failed=True),
    # A pushed cluster map: extras of 4 or 16 bytes, no key for the global one, no map in a brief one (kv:
    # docs/BinaryProtocol.md, Clustermap Change Notification).
    Excuse(warning="extras", opcodes=frozenset({0x01}), extras=frozenset({4}), server=True),
    Excuse(warning="key wanted", opcodes=frozenset({0x01}), extras=frozenset({4, 16}), server=True),
    Excuse(warning="value length", opcodes=frozenset({0x01}), extras=frozenset({4, 16}), server=True),
)


def our_frames() -> Iterator[tuple[str, bytes]]:
    """What is shown to the dissector: our DCP and KV vectors, a message of every class and layout, the captures."""
    for vector in (*documents(), *handmade()):
        if vector.group in ("dcp", "kv"):
            yield vector.id, vector.wire
    for case in CASES:
        if case.dialect is Dialect.DCP:
            yield case.id, encode(sample(case), Dialect.DCP)
    for one in well_formed():
        yield one.id, one.wire


@pytest.fixture(scope="module")
def sent() -> list[Sent]:
    """Every frame with the packet in which its last byte is."""
    found = []
    packet = HANDSHAKE_PACKETS
    for name, wire in our_frames():
        packet += -(-len(wire) // SEGMENT_BYTES)
        found.append(Sent(name=name, frame=whole_frame(wire, body_bytes_max=BODY_BYTES_MAX), packet=packet))
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What the dissector says of our frames."""
    return dissected(tmp_path_factory.mktemp("tshark") / "frames.pcap", [wire for _, wire in our_frames()])


def dissected(path: Path, frames: list[bytes]) -> Seen:
    """What the dissector says of each packet: its fields and its complaints, by our names for them."""
    write_pcap(path, frames)
    columns = {"packet": "frame.number", **VALUES, **{f"! {name}": field for name, field in WARNINGS.items()}}
    columns["words"] = "_ws.expert.message"
    fields = [part for field in columns.values() for part in ("-e", field)]
    options = ["-T", "fields", "-E", "aggregator=;"]
    run = subprocess.run(
        ["tshark", "-r", str(path), "-d", f"tcp.port=={SERVER[1]},couchbase", *options, *fields],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows = [dict(zip(columns, line.split("\t"), strict=True)) for line in run.stdout.splitlines()]
    return {int(row["packet"]): row for row in rows}


def test_the_dissector_sees_every_frame(sent: list[Sent], seen: Seen):
    """Each frame is recognised, under the opcode that we gave it."""
    assert len(sent) > 4000
    for one in sent:
        row = seen[one.packet]
        assert UNKNOWN_OPCODE not in row["words"], one.name
        assert int(row["opcode"] or row["server_opcode"], 16) == one.frame.header.opcode, one.name
        assert int(row["key_length"]) == one.frame.header.key_length, one.name
    shown = sum(bool(row["opcode"] or row["server_opcode"]) for row in seen.values())
    assert shown == len(sent)


def test_the_dissector_finds_nothing_wrong(sent: list[Sent], seen: Seen):
    """No frame is malformed, unknown or of a wrong shape, but for what is excused; every excuse is needed."""
    complaints = [(one, warning) for one in sent for warning in WARNINGS if seen[one.packet][f"! {warning}"]]
    unexcused = [
        f"{one.name}: {warning}"
        for one, warning in complaints
        if not any(excuse.covers(one, warning) for excuse in EXCUSED)
    ]
    assert "\n".join(unexcused) == ""
    for excuse in EXCUSED:
        assert any(excuse.covers(one, warning) for one, warning in complaints), excuse


def test_the_dissector_reads_the_same_numbers(sent: list[Sent], seen: Seen):
    """Seqnos, flags, expiry and vbucket of DCP's messages are to it what they are to our codec."""
    compared = 0
    for one in sent:
        message = decode(one.frame, Dialect.DCP)
        row = seen[one.packet]
        if isinstance(message, catalogue.Mutation | catalogue.Deletion | catalogue.SnapshotMarker):
            assert int(row["vbucket"]) == message.vbucket, one.name
        for name in ("by_seqno", "rev_seqno", "flags", "expiry", "start_seqno", "end_seqno"):
            ours = getattr(message, name, None)
            if ours is not None and row[name] and isinstance(message, READ_ALIKE):
                assert int(row[name].partition(";")[0], 0) == ours, f"{one.name}: {name}"
                compared += 1
    assert compared > 2000


def test_the_dissector_does_complain(tmp_path: Path):
    """What is wrong is noticed by this very check: an unknown opcode, short extras, a value where none may be."""
    get = encode(catalogue.Get(key=b"k"))
    unknown = get[:1] + b"\xee" + get[2:]
    short = bytes.fromhex("805700011e0000000000001f00000000") + bytes(8 + 30) + b"k"
    valued = bytearray(get + b"v")
    valued[11] += 1
    seen = dissected(tmp_path / "wrong.pcap", [unknown, short, bytes(valued)])
    first, second, third = (seen[HANDSHAKE_PACKETS + number] for number in (1, 2, 3))
    assert UNKNOWN_OPCODE in first["words"]
    assert second["! extras"]
    assert third["! no value allowed"]
