"""The forms in which a reader may get an item, whatever form it is kept in."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ids import Cas, Opaque, Seqno, VBucketId
from headrace.node.dcp import frames
from headrace.node.dcp.frames import Framer, Shape
from headrace.store import StoreError
from headrace.store.records import DELETED, EXPIRED, LIVE, Record
from headrace.wire import Dialect, Response, decode, deflate, join_xattrs
from headrace.wire.catalogue import Deletion, Expiration, Mutation, Set, SetWithMeta, Touch
from headrace.wire.codes import Datatype, Feature, OpenFlag, Status
from headrace.wire.limits import HEADER_BYTES
from tests.node.talk import Talk
from tests.streams.reader import Reader

if TYPE_CHECKING:
    from headrace.node import Node

VB = VBucketId(3)
XATTRS = join_xattrs({b"_sync": b'{"a":1}'}, b'{"b":2}')
PLAIN = b'{"value":"' + b"x" * 100 + b'"}'
SMALL = deflate(PLAIN)
JSON, SNAPPY, XATTR = Datatype.JSON, Datatype.SNAPPY, Datatype.XATTR


class Form(NamedTuple):
    """What a reader agreed on, what is kept, and what is to come."""

    value: bytes
    datatype: int
    expected: tuple[bytes, int]
    flags: int = 0
    features: tuple[Feature, ...] = ()
    controls: dict[str, str] = {}  # noqa: RUF012 - never changed


FORMS = {
    "plain": Form(PLAIN, 0, (PLAIN, JSON)),
    "inflated": Form(SMALL, SNAPPY, (PLAIN, JSON)),
    "compressed": Form(SMALL, SNAPPY, (SMALL, JSON | SNAPPY), features=(Feature.SNAPPY,)),
    "forced": Form(
        PLAIN, 0, (SMALL, JSON | SNAPPY), features=(Feature.SNAPPY,), controls={"force_value_compression": "true"}
    ),
    "forced in vain": Form(b"short", 0, (b"short", 0), 0, (Feature.SNAPPY,), {"force_value_compression": "true"}),
    "no xattrs": Form(XATTRS, XATTR, (b'{"b":2}', JSON)),
    "xattrs": Form(XATTRS, XATTR, (XATTRS, JSON | XATTR), OpenFlag.INCLUDE_XATTRS),
    "no value": Form(PLAIN, 0, (b"", 0), OpenFlag.NO_VALUE),
    "datatype alone": Form(PLAIN, 0, (b"", JSON), OpenFlag.NO_VALUE_WITH_DATATYPE),
    "xattrs alone": Form(
        XATTRS, XATTR, (XATTRS.removesuffix(b'{"b":2}'), XATTR), OpenFlag.NO_VALUE | OpenFlag.INCLUDE_XATTRS
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_the_forms_of_a_value(node: Node, form: Form):
    """A reader gets a value in the form that it agreed on."""
    with Talk(node, Feature.SNAPPY, Feature.XATTR, Feature.JSON) as talk:
        written = SetWithMeta(
            vbucket=VB, key=b"k", value=form.value, datatype=form.datatype, item_cas=Cas(5), rev_seqno=1
        )
        talk.get(written, Response)
    with Reader(node, *form.features, flags=form.flags, controls=form.controls) as reader:
        reader.begin(VB)
        (item,) = reader.items(1)
        assert (item.value, item.datatype) == form.expected


REMOVALS = {
    "as a deletion": (0, {}, Deletion, "v1"),
    "with its time": (OpenFlag.INCLUDE_DELETE_TIMES, {}, Deletion, "v2"),
    "as an expiration": (OpenFlag.INCLUDE_DELETE_TIMES, {"enable_expiry_opcode": "true"}, Expiration, "v2"),
    "the control alone": (0, {"enable_expiry_opcode": "true"}, Expiration, "v2"),
    "with metadata": (0, {"enable_ext_metadata": "true"}, Deletion, "v1"),
}


@pytest.mark.parametrize("how", REMOVALS.values(), ids=REMOVALS.keys())
def test_the_forms_of_a_removal(node: Node, how: tuple[int, dict[str, str], type, str]):
    """An item that expired arrives as a deletion, or as what it is where that was asked for, with its time or not."""
    flags, controls, kind, layout = how
    with Talk(node) as talk:
        talk.get(Set(vbucket=VB, key=b"gone", value=b"v", expiry=1), Response)
    time.sleep(1.2)
    with Talk(node) as talk:
        assert talk.status(Touch(vbucket=VB, key=b"gone", expiry=1)) == Status.KEY_NOT_FOUND
    with Reader(node, flags=flags, controls=controls) as reader:
        reader.begin(VB)
        (item,) = reader.items(1)
        assert isinstance(item, kind)
        assert (item.layout, item.key) == (layout, b"gone")
        assert item.meta == (frames.EXT_METADATA if "enable_ext_metadata" in controls else b"")
        if layout == "v2":
            assert not isinstance(item, Mutation)
            assert abs((item.delete_time or 0) - time.time()) < 30


def _record(kind: int, number: int, value: bytes, datatype: int) -> Record:
    return Record(
        opcode=kind, vbucket=VB, key=b"k%d" % number, value=value if kind == LIVE else b"",
        datatype=datatype if kind == LIVE and value else 0, cas=Cas(number + 1), seqno=Seqno(number + 1),
        rev_seqno=1, delete_time=0 if kind == LIVE else 77,
    )  # fmt: skip


VALUES = st.sampled_from([(b"", 0), (b"v" * 30, 0), (PLAIN, JSON), (SMALL, JSON | SNAPPY), (XATTRS, JSON | XATTR)])
RECORDS = st.lists(st.tuples(st.sampled_from([LIVE, DELETED, EXPIRED]), VALUES), min_size=1, max_size=30).map(
    lambda rows: [_record(kind, n, *value) for n, (kind, value) in enumerate(rows)]
)
SHAPES = st.builds(
    Shape,
    dialect=st.sampled_from([Dialect.DCP, Dialect.UPR]),
    delete_times=st.booleans(),
    expiry_opcode=st.booleans(),
    xattrs=st.booleans(),
    snappy=st.booleans(),
    no_value=st.booleans(),
    ext_metadata=st.booleans(),
)


def _taken(framer: Framer, records: list[Record], budget: int) -> list[bytes]:
    """All frames of some records, taken with a budget each time."""
    block = bytearray().join(one.pack() for one in records)
    at, blocks = 0, []
    while at < len(block):
        pieces, size, at = framer.take(block, at, budget, Opaque(0x01020304))
        blocks.append(b"".join(pieces))
        assert len(blocks[-1]) == size
    return blocks


@given(RECORDS, SHAPES, st.integers(1, 500))
def test_copied_as_made(records: list[Record], shape: Shape, budget: int):
    """Frames that are copied with another opaque equal those that are made one by one, however they are cut."""
    frames.load()
    assert frames.kernel() is not None
    blocks = _taken(Framer(shape), records, budget)
    assert b"".join(blocks) == b"".join(frames.convert(one, shape, Opaque(0x01020304)) for one in records)
    for block in blocks:
        last = block
        while len(last) > HEADER_BYTES + int.from_bytes(last[8:12], "big"):
            last = last[HEADER_BYTES + int.from_bytes(last[8:12], "big") :]
        # A block passes its budget by less than its last frame.
        assert len(block) - len(last) < budget
        assert decode(last, shape.dialect).opaque == 0x01020304


@given(RECORDS, SHAPES, st.integers(1, 500))
def test_compiled_as_plain(records: list[Record], shape: Shape, budget: int):
    """The compiled loop and the plain one give the same frames and the same seqnos."""
    frames.load()
    compiled, plain = Framer(shape), Framer(shape)
    plain._patch = plain._patch_plainly  # type: ignore[method-assign]
    assert _taken(compiled, records, budget) == _taken(plain, records, budget)
    assert compiled.last_seqno == plain.last_seqno == records[-1].seqno


@pytest.mark.parametrize("spoiled", [{1: 0x42}, {8: 0xFF}, {11: 0}], ids=["opcode", "too long", "too short"])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_damaged_record_is_told(spoiled: dict[int, int], is_compiled: bool):
    """Nothing is written behind the block, and the stream learns that the disk is damaged."""
    frames.load()
    framer = Framer(Shape(delete_times=True, expiry_opcode=True))
    if not is_compiled:
        framer._patch = framer._patch_plainly  # type: ignore[method-assign]
    whole = _record(LIVE, 1, b"v", 0).pack()
    block = bytearray(whole + whole)
    for at, byte in spoiled.items():
        block[len(whole) + at] = byte
    kept = bytes(block)
    _, _, at = framer.take(block, 0, 1, Opaque(7))
    assert at == len(whole)
    with pytest.raises(StoreError, match="damaged"):
        framer.take(block, at, 1000, Opaque(7))
    assert block[at:] == kept[at:]
