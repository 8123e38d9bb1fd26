"""The captures of a server that consumes, played to our consumer frame by frame."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from headrace.history import State
from tests.replication.copies import World, feed
from tests.wire.vectors import TESTS

if TYPE_CHECKING:
    from headrace.node.dcp.consumer import Consumer
    from tests.replication.copies import FakeLine

CONTROL, BUFFER_ACK, STREAM_REQUEST, OPEN = 0x5E, 0x5D, 0x53, 0x50
CONSUMER_CONNECTIONS = {"", "c51", "c52", "c53", "c54", "c55"}
STATES = dict.fromkeys(range(8), State.REPLICA) | {8: State.ACTIVE, 9: State.PENDING}
UPR_MUTATION = bytes.fromhex("805700011e")
"""A mutation of 30 bytes: 4.1.2 refuses it, we take it. Intended."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a capture."""

    number: int
    connection: str
    sent: bytes = b""
    expected: bytes = b""
    closes: bool = False
    note: str = ""


def steps(name: str) -> list[Step]:
    """The lines of a capture that a consumer sees."""
    found = []
    lines = (TESTS / "captures" / name).read_text().splitlines()
    for number, text in enumerate(lines[1:], 2):
        line = json.loads(text)
        connection, frame = line.get("conn", ""), bytes.fromhex(line.get("hex", ""))
        if connection not in CONSUMER_CONNECTIONS:
            continue
        if line["dir"] == "note":
            closes = "closed the connection" in line["text"]
            found.append(Step(number, connection, closes=closes, note=line["text"]))
        elif line["dir"] == "c2s":
            found.append(Step(number, connection, sent=frame))
        else:
            found.append(Step(number, connection, expected=frame))
    return found


class Player:
    """Plays one capture: what the server sent is what we must send, but for opaques and UUIDs of its own choice."""

    def __init__(self, *, by_block: bool) -> None:
        self.world = World(STATES)
        self.by_block = by_block
        self.opaques: dict[bytes, bytes] = {}
        self.ends: dict[str, tuple[Consumer, FakeLine]] = {}
        self.said: dict[str, list[bytes]] = {}
        self.acked = 0
        self.judged = 0

    def play(self, story: list[Step]) -> None:
        for step in story:
            if step.closes:
                assert self.ends[step.connection][1].left, f"line {step.number}: the connection was to be closed"
                self.ends[step.connection][0].close()
            elif step.sent:
                self._send(step)
            elif step.expected and step.expected[1] not in {CONTROL, BUFFER_ACK, OPEN}:
                self._expect(step)
        assert not any(self.said.values()), f"said beyond the capture: {self.said}"

    def _send(self, step: Step) -> None:
        frame = step.sent
        if frame[1] == OPEN:
            self.opaques.clear()
            for consumer, _ in self.ends.values():
                consumer.close()
            self.ends[step.connection] = self.world.consumer(step.connection)
            self.said[step.connection] = []
            return
        if frame[0] == 0x81 and frame[1] == CONTROL:
            return
        consumer, line = self.ends[step.connection]
        opaque = self.opaques.get(frame[12:16], frame[12:16])
        feed(consumer, [frame[:12] + opaque + frame[16:]], self.world.now, by_block=self.by_block)
        self.world.flusher.flush()
        self.world.flusher.flush()
        for said in line.take():
            if said[1] == BUFFER_ACK:
                self.acked += int.from_bytes(said[24:28])
            elif said[1] != CONTROL:
                self.said[step.connection].append(said)

    def _expect(self, step: Step) -> None:
        said = self.said[step.connection]
        assert said, f"line {step.number}: nothing was said"
        got, wanted = said.pop(0), step.expected
        self.judged += 1
        if wanted[0] == 0x80:
            assert wanted[1] == STREAM_REQUEST
            self.opaques[wanted[12:16]] = got[12:16]
            # Flags, reserved, start and end seqno; the UUID and the start of a snapshot are each server's own.
            assert (got[:12], got[24:48]) == (wanted[:12], wanted[24:48]), f"line {step.number}"
            return
        expected_opaque = self.opaques.get(wanted[12:16], wanted[12:16])
        if wanted[1] == 0x51 and len(wanted) == 28:  # ours tells the opaque as it is on the wire
            stream_opaque = wanted[24:28][::-1]
            assert got[24:28] == self.opaques[stream_opaque], f"line {step.number}"
            got, wanted = got[:24], wanted[:24]
        assert got[:12] + got[16:] == wanted[:12] + wanted[16:], f"line {step.number}"
        assert got[12:16] == expected_opaque, f"line {step.number}"


def until(story: list[Step], note: str) -> list[Step]:
    """The story up to a note."""
    end = next(place for place, step in enumerate(story) if step.note == note)
    return story[:end]


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("server", ["4.1.2", "3.0.3"])
def test_basics(server: str, by_block: bool):
    """Items, snapshots, states and the end of a stream are answered as a real server answers them."""
    player = Player(by_block=by_block)
    story = steps(f"{server}/07a_consumer_basic.jsonl")
    player.play(story)
    vb = player.world.vb(0)
    assert player.judged == 6
    assert (vb.high_seqno, vb.vbuuid, vb.state) == (9, 0xAABBCCDDEEFF, State.ACTIVE)
    consumer, line = player.ends[""]
    player.world.now = 6.0
    consumer.pump(6.0)
    acked = sum(int.from_bytes(frame[24:28]) for frame in line.take())
    assert acked == 0x2FB + 28 + 57, "the server acked before the end of the stream and what came after it"


@pytest.mark.parametrize("by_block", [False, True])
def test_errors(by_block: bool):
    """Each wrong message is answered with the status of the capture, or ends the connection."""
    player = Player(by_block=by_block)
    story = steps("4.1.2/07b_consumer_errors.jsonl")
    upr = next(place for place, step in enumerate(story) if step.sent.startswith(UPR_MUTATION))
    assert story[upr + 1].expected[6:8] == b"\x00\x04"
    player.play([step for place, step in enumerate(story) if place not in {upr, upr + 1}])
    assert player.judged == 50


@pytest.mark.parametrize("by_block", [False, True])
def test_errors_of_an_older_server(by_block: bool):
    """3.0.3 agrees until it takes markers that cannot be, and aborts at seqno 0."""
    player = Player(by_block=by_block)
    player.play(until(steps("3.0.3/07b_consumer_errors.jsonl"), "marker whose start is past its end"))
    assert player.judged == 7


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("server", ["4.1.2", "3.0.3"])
def test_takeover(server: str, by_block: bool):
    """A takeover makes the vbucket pending, then active, on the branch of its producer."""
    player = Player(by_block=by_block)
    player.play(steps(f"{server}/07d_consumer_addstream_takeover.jsonl"))
    vb = player.world.vb(9)
    assert player.judged == 4
    assert (vb.state, vb.state_on_disk, vb.persisted_seqno, vb.vbuuid) == (State.ACTIVE, State.ACTIVE, 1, 0x99)


@pytest.mark.parametrize("server", ["4.1.2", "3.0.3"])
@pytest.mark.parametrize("name", ["10a_replication_two_servers", "10b_takeover_two_servers"])
def test_both_real(server: str, name: str):
    """What a real producer sent to a real consumer makes the same copy here, with the same answers in order."""
    lines = [json.loads(text) for text in (TESTS / "captures" / server / f"{name}.jsonl").read_text().splitlines()[1:]]
    frames = [
        Step(number, "", *((frame, b"") if line["dir"] == "c2s" else (b"", frame)))
        for number, line in enumerate(lines, 2)
        if line.get("conn") == "cons" and (frame := bytes.fromhex(line["hex"]))
    ]
    player = Player(by_block=True)
    # The servers answered ADD_STREAM some messages late; ours does at once.
    added = next(place for place, step in enumerate(frames) if step.expected[1:2] == b"\x51")
    accepted = next(place for place, step in enumerate(frames) if step.sent[:2] == b"\x81\x53")
    frames.insert(accepted + 1, frames.pop(added))
    player.play(frames)
    moves = name.startswith("10b")
    vb = player.world.vb(0 if moves else 1)
    assert vb.high_seqno == (11 if moves else 16)
    assert vb.state is (State.ACTIVE if moves else State.REPLICA)
    assert len(player.world.items(vb.id)) == (10 if moves else 15)
