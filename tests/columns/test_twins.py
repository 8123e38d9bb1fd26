"""The kernel and the plain codec are one decoder, written twice."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.columns import Positions, Settings, decode_changes, plain
from headrace.ids import Seqno
from headrace.wire import Dialect, encode
from headrace.wire.catalogue import Mutation
from tests.columns.streams import all_settings, streams

CAPTURES = sorted((Path(__file__).parents[1] / "captures").glob("*/*.jsonl"))


def outcome(changes: Any) -> dict[str, Any]:
    """All that a caller can see of a batch."""
    changes.rows.validate(full=True)
    error = changes.error
    return {
        "rows": changes.rows.to_pylist(),
        "schema": changes.rows.schema,
        "controls": [(each.row, each.message) for each in changes.controls],
        "consumed": changes.consumed_bytes,
        "flow": changes.flow_bytes,
        "more": changes.more,
        "error": error and (error.text, error.offset),
    }


def assert_twins_agree(pieces: list[bytes], settings: Settings) -> list[Any]:
    """Feed both the same pieces, as a connection would, and compare every batch."""
    fast, slow = Positions(), Positions()
    rest = b""
    batches = []
    for piece in pieces:
        rest += piece
        more = True
        while more:
            got = decode_changes(rest, settings, fast)
            assert outcome(got) == outcome(plain.decode_changes(rest, settings, slow))
            assert (fast.table == slow.table).all()
            rest = rest[got.consumed_bytes :]
            more = got.more
            batches.append(got)
            if got.error:
                return batches
    return batches


@given(st.data())
def test_twins_agree_on_any_stream_cut_anywhere(data: st.DataObject):
    """Every batch of every stream, right or broken, is the same from both, wherever the pieces were cut."""
    settings = data.draw(all_settings())
    stream = data.draw(streams(settings))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    edges = [0, *cuts, len(stream)]
    assert_twins_agree([stream[a:b] for a, b in pairwise(edges)], settings)


@given(st.data())
def test_twins_agree_on_any_bytes(data: st.DataObject):
    """Bytes that nobody meant as frames, and right streams with some bytes changed, are the same to both."""
    settings = data.draw(all_settings())
    stream = bytearray(data.draw(st.binary(max_size=200) | streams(settings)))
    for _ in range(data.draw(st.integers(0, 3))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    assert_twins_agree([bytes(stream)], settings)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_twins_agree_on_every_capture(path: Path):
    """What the real servers sent comes out the same from both, whole and byte by byte."""
    sent: dict[str, bytes] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if entry.get("dir") == "s2c":
            name = entry.get("conn", "main")
            sent[name] = sent.get(name, b"") + bytes.fromhex(entry["hex"])
    for stream in sent.values():
        whole = assert_twins_agree([stream], Settings(keys="binary"))
        assert sum(batch.consumed_bytes for batch in whole) == len(stream)
    for stream in list(sent.values())[:1]:
        assert_twins_agree([stream[at : at + 1] for at in range(min(len(stream), 400))], Settings(keys="binary"))


@st.composite
def snappy_blocks(draw: st.DrawFn) -> bytes:
    """A block that is right, or wrong by one: in what a copy reaches back to, in its length, or in its last byte."""
    made = 0
    body = b""
    for _ in range(draw(st.integers(1, 5))):
        if made == 0 or draw(st.booleans()):
            literal = draw(st.binary(min_size=1, max_size=70))
            size = len(literal) - 1
            body += bytes([size << 2] if size < 60 else [60 << 2, size]) + literal
            made += len(literal)
        else:
            length = draw(st.integers(1, 64))
            offset = draw(st.integers(0, made + 2) | st.sampled_from([made - 1, made, made + 1]))
            body += bytes([(length - 1) << 2 | 2]) + offset.to_bytes(2, "little")
            made += length
    length = max(0, made + draw(st.sampled_from([0, 0, 0, -1, 1])))
    prefix = bytes([length]) if length < 0x80 else bytes([length & 0x7F | 0x80, length >> 7])
    return prefix + body[: len(body) - draw(st.sampled_from([0, 0, 1]))]


@given(snappy_blocks())
def test_twins_agree_on_blocks_that_are_nearly_right(block: bytes):
    """A block that is wrong by one byte or one place is refused by both; a right one by none."""
    frame = encode(Mutation(by_seqno=Seqno(1), rev_seqno=1, key=b"k", value=block, datatype=2), Dialect.DCP)
    assert_twins_agree([frame], Settings())


@given(st.data())
def test_twins_agree_on_snappy_blocks(data: st.DataObject):
    """A snappy block that anybody could make up is inflated, or refused, by both alike."""
    length = data.draw(st.integers(0, 70))
    tags = data.draw(st.lists(st.binary(min_size=1, max_size=5) | st.binary(min_size=60, max_size=64), max_size=6))
    block = bytes([length]) + b"".join(tags)
    frame = encode(Mutation(by_seqno=Seqno(1), rev_seqno=1, key=b"k", value=block, datatype=2), Dialect.DCP)
    assert_twins_agree([frame], Settings())
