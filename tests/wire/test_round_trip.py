"""What goes out comes back, for every layout of every class in every dialect; what cannot go out is refused."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError
from headrace.ids import Opaque, Seqno, VBucketId
from headrace.wire import Dialect, Malformed, Message, catalogue, decode, encode
from headrace.wire.fields import Integer
from headrace.wire.header import whole_frame
from headrace.wire.registry import spoken_in
from tests.wire.strategies import CASES, Case, messages, sample

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
few = settings(max_examples=10)


def changed(message: Message, **values: Any) -> Message:
    """The same message with other values in some fields, whether or not they fit."""
    return dataclasses.replace(message, **values)


@each_case
@few
@given(data=st.data())
def test_a_message_comes_back(case: Case, data: st.DataObject):
    """Decoding what was encoded gives the message, from its own layout; encoding that again gives the bytes."""
    message = data.draw(messages(case))
    wire = encode(message, case.dialect)
    again = decode(wire, case.dialect)
    assert again == message
    assert again.layout == case.layout.name
    assert encode(again, case.dialect) == wire


@each_case
def test_a_dialect_without_a_message_refuses_it(case: Case):
    """A message goes out in its dialects, and where its opcode is free to stand for it; elsewhere it is refused."""
    message = sample(case)
    for dialect in Dialect:
        if dialect in case.layout.dialects:
            assert encode(message, dialect)
        elif spoken_in(case.cls, dialect) is None:
            with pytest.raises(LocalProtocolError, match=f"the {dialect} dialect has no {case.cls.spec.name}"):
                encode(message, dialect)


@each_case
def test_a_number_out_of_range_is_refused(case: Case):
    """A number that its field cannot hold is the caller's mistake, in header, extras, engine bytes and value."""
    message = sample(case)
    numbers = {name: (field.kind, field.when) for name, field in message.spec.fields.items()}
    for name in case.layout.carried - case.layout.constants.keys():
        kind, when = numbers[name]
        if isinstance(kind, Integer) and not when:
            for number in (-1, 2 ** (8 * kind.size)):
                with pytest.raises(LocalProtocolError, match="cannot carry"):
                    encode(changed(message, **{name: number}), case.dialect)
    for name, bits in (("opaque", 32), ("cas", 64), ("datatype", 8)):
        with pytest.raises(LocalProtocolError, match="the header cannot hold"):
            encode(changed(message, **{name: 2**bits}), case.dialect)


@pytest.mark.parametrize("case", [case for case in CASES if case.layout.constants], ids=lambda case: case.id)
def test_a_constant_may_be_left_out(case: Case):
    """The number by which a layout is told from others is filled in; another one is refused."""
    message = sample(case)
    for name, number in case.layout.constants.items():
        unset = changed(message, **{name: None})
        assert getattr(decode(encode(unset, case.dialect), case.dialect), name) == number
        with pytest.raises(LocalProtocolError, match=f"{name}=77"):
            encode(changed(message, **{name: 77}), case.dialect)


def test_the_version_chooses_the_marker():
    """A marker's version picks its layout, even when the fields would fit a smaller one."""
    small = catalogue.SnapshotMarker(
        start_seqno=Seqno(1),
        end_seqno=Seqno(2),
        flags=1,
        max_visible_seqno=Seqno(2),
        high_completed_seqno=Seqno(0),
    )
    assert decode(encode(small)).layout == "v2.0"
    assert decode(encode(dataclasses.replace(small, version=2))).layout == "v2.2"


def test_every_declared_layout_is_tried():
    """The cases hold each layout of each class in each dialect that declares it."""
    tried = {(case.cls, case.dialect, case.layout.name) for case in CASES}
    declared = {
        (cls, dialect, layout.name)
        for cls in vars(catalogue).values()
        if isinstance(cls, type) and issubclass(cls, Message) and "spec" in vars(cls)
        for dialect, layouts in cls.spec.layouts.items()
        for layout in layouts
    }
    assert declared == tried


def test_what_is_ignorable_is_dropped():
    """A field marked as ignorable is left out where the dialect has no place for it."""
    mutation = catalogue.Mutation(by_seqno=Seqno(4), rev_seqno=1, nru=3, key=b"hello", value=b"world", meta=b"m")
    assert decode(encode(mutation, Dialect.DCP), Dialect.DCP) == mutation
    upr = decode(encode(mutation, Dialect.UPR), Dialect.UPR)
    assert upr == dataclasses.replace(mutation, nru=None)
    draft = decode(encode(mutation, Dialect.UPR_DRAFT), Dialect.UPR_DRAFT)
    assert draft == dataclasses.replace(mutation, nru=None, meta=b"")


def test_what_is_not_ignorable_is_refused():
    """A field that would be lost is named, and only that one; fields that exclude each other are said to."""
    deletion = catalogue.Deletion(by_seqno=Seqno(4), rev_seqno=1, key=b"hello", delete_time=9)
    with pytest.raises(LocalProtocolError, match=r"the upr dialect has no deletion with delete_time=9$"):
        encode(deletion, Dialect.UPR)
    state = catalogue.SetVBucket(state=1, state_byte=1)
    with pytest.raises(LocalProtocolError, match=r"the dcp dialect has no set_vbucket with these fields together$"):
        encode(state)


def test_keys_follow_their_rule():
    """A key that must be there, must not be there or is too long for its header is refused."""
    with pytest.raises(LocalProtocolError, match="get must have a key"):
        encode(catalogue.Get(key=b""))
    with pytest.raises(LocalProtocolError, match="the header cannot hold"):
        encode(catalogue.Get(key=bytes(0x10000)))
    with pytest.raises(LocalProtocolError, match="the header cannot hold"):
        encode(catalogue.Get(key=bytes(0x100), framing=b""))
    with pytest.raises(LocalProtocolError, match="the header cannot hold"):
        encode(catalogue.Get(key=b"k", framing=bytes(0x100)))


def test_flags_and_their_parts_come_together():
    """A part of TAP connect's body without its flag is refused, and so is the flag without the part."""
    with pytest.raises(LocalProtocolError, match="flag 0x01 and Backfill date come together or not at all"):
        encode(catalogue.TapConnect(flags=1), Dialect.TAP)
    with pytest.raises(LocalProtocolError, match="flag 0x04 and VBucket list come together or not at all"):
        encode(catalogue.TapConnect(flags=0, vbuckets=(1,)), Dialect.TAP)
    with pytest.raises(LocalProtocolError, match="cannot carry"):
        encode(catalogue.TapConnect(flags=4, vbuckets=(0,) * 0x10000), Dialect.TAP)
    with pytest.raises(LocalProtocolError, match="cannot carry"):
        encode(catalogue.TapConnect(flags=4, vbuckets=(0x10000,)), Dialect.TAP)


def test_what_messages_share_is_no_message():
    """A shape that messages are built on has no entry, and no message is a kind of another."""
    entered = [cls for cls in vars(catalogue).values() if isinstance(cls, type) and "spec" in vars(cls)]
    assert catalogue.TapRequest not in entered
    assert not [(one, other) for one in entered for other in entered if one is not other and issubclass(one, other)]


def test_the_server_has_no_flexible_header():
    """Framing extras on a message that has no flexible form are refused, and not mistaken for its extras."""
    push = catalogue.ClustermapChangeNotification(epoch=1, revision=2, framing=b"abc")
    with pytest.raises(LocalProtocolError, match="framing extras"):
        encode(push)


def test_other_dialects_opcodes_are_spoken_where_free():
    """A stream's first TAP message goes through a DCP connection, and DCP's through a TAP one."""
    connect = catalogue.TapConnect(flags=0, name=b"node1", opaque=Opaque(3))
    assert encode(connect, Dialect.DCP) == encode(connect, Dialect.TAP)
    assert decode(encode(connect, Dialect.DCP), Dialect.UPR) == connect
    noop = catalogue.DcpNoop(vbucket=VBucketId(1))
    assert decode(encode(noop, Dialect.TAP), Dialect.TAP) == noop
    with pytest.raises(LocalProtocolError):
        encode(noop, Dialect.UPR_DRAFT)


def test_metadata_may_be_none():
    """A layout with room for metadata goes out without any."""
    came = decode(encode(catalogue.SetWithMeta(rev_seqno=1, item_cas=2, key=b"k", meta=b"m")))
    assert came.layout == "with meta"
    bare = decode(encode(changed(came, meta=None)))
    assert bare == changed(came, meta=b"")


def test_rollback_is_written_as_clients_read_it():
    """A rollback's seqno is written as a value, which is what clients read; extras, as drawn, are read too."""
    answer = catalogue.Rollback(opcode=0x53, status=0x23, seqno=Seqno(7))
    drawn = encode(changed(answer, layout="in extras"), Dialect.UPR)
    for dialect in (Dialect.UPR, Dialect.DCP):
        assert encode(answer, dialect)[4] == 0
        assert decode(encode(answer, dialect), dialect) == decode(drawn, dialect) == answer
        assert encode(decode(drawn, dialect), dialect) == drawn


@each_case
def test_offsets_are_those_of_the_wire(case: Case):
    """What the catalogue says of a layout's extras, their size and where each field stands, is what is sent."""
    spec, layout = case.cls.spec, case.layout
    integers = [name for name in layout.extras if isinstance(spec.field(name).kind, Integer)]
    if integers != list(layout.extras):
        return
    frame = whole_frame(encode(sample(case), case.dialect), body_bytes_max=1 << 20)
    assert spec.extras_size(layout) == len(frame.extras)
    for name in integers:
        if name in spec.fields and name not in layout.constants:
            wire = encode(changed(sample(case), **{name: 0x82}), case.dialect)
            size, start = spec.integer(name).size, 24 + spec.extras_offset(layout, name)
            assert wire[start : start + size] == (0x82).to_bytes(size)
    assert spec.extras_offset(layout, "nothing of this name") == -1


def test_a_constant_of_no_layout_is_malformed():
    """A marker of an unknown version, or a row count that is cut, is Malformed at the byte that is wrong."""
    marker = bytes.fromhex("805600000100000000000025000000000000000000000000") + b"\x07" + bytes(36)
    message = decode(marker)
    assert isinstance(message, Malformed)
    assert (message.problem.offset, message.problem.text) == (24, "version 7 is not the 0 of this layout")
    connect = bytes.fromhex("80400000040000000000000500000000000000000000000000000004") + b"\x00"
    message = decode(connect, Dialect.TAP)
    assert isinstance(message, Malformed)
    assert (message.problem.offset, message.problem.text) == (28, "VBucket list needs 2 bytes, 1 are left")


def test_a_message_is_a_value():
    """Messages of one class and content are equal and hash alike, whatever their layout; repr tells what is set."""
    get = catalogue.Get(key=b"k", opaque=Opaque(3))
    assert len({get, decode(encode(get)), changed(get, layout="any")}) == 1
    assert get != catalogue.GetQ(key=b"k", opaque=Opaque(3))
    assert get != changed(get, opaque=4)
    assert repr(get) == "Get(opaque=3, key=b'k')"
