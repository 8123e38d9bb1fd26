"""Bytes that are no requests: the node answers or leaves, and serves others as before."""

from __future__ import annotations

import random
import struct
import time
from typing import TYPE_CHECKING

import pytest

from headrace.ids import Opaque
from headrace.wire import FrameReader, Header, NeedData, encode
from headrace.wire.catalogue import Noop, Set
from headrace.wire.codes import Magic, Status
from headrace.wire.header import FLEXIBLE_MAGICS, REQUEST_MAGICS
from headrace.wire.limits import BODY_BYTES_MAX
from tests.hostile.witness import dial, read_to_end, say, witnessed

if TYPE_CHECKING:
    import socket

    from tests.processes import Server

SECONDS = 4.0
NOOP = Opaque(0xC0FFEE)
HEADER = struct.Struct(">BBHBBHIIQ")


def test_random_bytes_end_in_an_answer_or_a_close(node: Server) -> None:
    """Thousands of connections send noise, cut off anywhere; none of them keeps the node from closing."""
    draw = random.Random(1)
    connections = 0
    with witnessed(node):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with dial(node.port) as connection:
                waits = draw.random() < 0.3
                say(connection, _noise(draw), is_all=waits)
                if waits:
                    read_to_end(connection)
            connections += 1
    assert connections > 200


def _noise(draw: random.Random) -> bytes:
    noise = draw.randbytes(draw.choice((1, 23, 24, 25, 100, 5000)))
    if draw.random() < 0.5:
        return noise
    # The same behind a magic that is known, so that more of it is looked at.
    return bytes([draw.choice(list(Magic)), draw.randrange(256)]) + noise


@pytest.mark.parametrize(
    "length",
    [0xFFFF_FFFF, 0x8000_0000, 0x7FFF_FFFF, BODY_BYTES_MAX + 1],
    ids=["4 GiB", "2 GiB", "2 GiB - 1", "limit + 1"],
)
def test_a_giant_length_ends_the_connection(node: Server, length: int) -> None:
    """A header that promises more than a message may have is not waited for."""
    with witnessed(node):
        for magic in (Magic.REQUEST, Magic.FLEXIBLE_REQUEST, Magic.RESPONSE):
            with dial(node.port) as connection:
                say(connection, HEADER.pack(magic, 0x01, 0, 0, 0, 0, length, 0, 0) + bytes(100))
                assert len(read_to_end(connection)) < 1000


def test_lengths_that_contradict_each_other_are_answered_or_end_it(node: Server) -> None:
    """Key and extras that are longer than the body: the connection ends, or the request is refused."""
    with witnessed(node):
        for opcode in range(256):
            with dial(node.port) as connection:
                header = HEADER.pack(Magic.REQUEST, opcode, 0xFFFF, 0xFF, 0, 1, 10, 0, 0)
                say(connection, header + bytes(10), encode(Noop()), is_all=True)
                reply = read_to_end(connection)
            assert not reply or Header.parse(reply).specific != Status.SUCCESS


@pytest.mark.parametrize("magic", list(Magic), ids=lambda magic: magic.name)
def test_garbage_behind_every_opcode(node: Server, magic: Magic) -> None:
    """Any opcode with any body is answered or ends the connection; what follows it is served or the line is closed."""
    draw = random.Random(magic)
    left = 0
    with witnessed(node):
        for opcode in range(256):
            for _ in range(2):
                with dial(node.port) as connection:
                    say(connection, _garbage(draw, magic, opcode) + encode(Noop(opaque=NOOP)))
                    left += not _served_noop(connection)
    if magic in REQUEST_MAGICS:
        assert left < 256, "most requests that make no sense are refused, and the next is served"


def test_an_unknown_first_byte_ends_the_connection(node: Server) -> None:
    """No byte but the six magics begins a message."""
    with witnessed(node):
        for first in set(range(256)) - set(Magic):
            with dial(node.port) as connection:
                say(connection, bytes([first]) + bytes(23) + encode(Noop()))
                assert read_to_end(connection) == b"", first


def test_half_frames_are_forgotten_with_their_connections(node: Server) -> None:
    """A message that is cut off at any byte does nothing."""
    whole = encode(Set(key=b"half", value=b"<half>" * 10))
    with witnessed(node):
        for cut in range(len(whole)):
            with dial(node.port) as connection:
                say(connection, whole[:cut], is_all=True)
                assert read_to_end(connection) == b""


def _garbage(draw: random.Random, magic: int, opcode: int) -> bytes:
    """A header whose lengths fit, and noise behind it; never vbucket 0, which the witness uses."""
    framing = draw.randrange(20) if magic in FLEXIBLE_MAGICS else 0
    extras, key, value = draw.randrange(40), draw.randrange(200), draw.randrange(6, 300)
    lengths = bytes([framing, key]) if magic in FLEXIBLE_MAGICS else key.to_bytes(2)
    body = draw.randbytes(framing + extras + key + value)
    vbucket = draw.choice((1, 2, 15, 16, 1023, 0xFFFF))
    rest = struct.pack(">BBHIIQ", extras, draw.choice((0, 0, 1, 0xFF)), vbucket, len(body), 7, draw.choice((0, 1)))
    return bytes([magic, opcode]) + lengths + rest + body


def _served_noop(connection: socket.socket) -> bool:
    """Whether the request behind the garbage was answered; False when the connection was closed."""
    reader = FrameReader()
    while True:
        while not isinstance(frame := reader.next_frame(), NeedData):
            if frame.header.opaque == NOOP:
                return True
        try:
            data = connection.recv(1 << 16)
        except ConnectionError:
            return False
        if not data:
            return False
        reader.receive(data)
