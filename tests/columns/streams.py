"""Streams of frames for the two decoders: right ones, odd ones and broken ones, made from the catalogue."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from headrace.columns import Settings
from headrace.ids import CollectionId
from headrace.wire import Dialect, Frame, Header, catalogue, deflate, encode, encode_collection, join_xattrs
from headrace.wire.codes import Datatype, Magic

c: Any = catalogue
"""Any: a drawn number is as good as a NewType."""

COLLECTIONS = {0: ("_default", "_default"), 8: ("inventory", "hotel"), 0x9C: ("inventory", "route")}

U64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1])
U32 = st.integers(0, 2**32 - 1) | st.sampled_from([0, 0xCAFE0000])
CLOCKS = st.integers(1_262_304_000_000_000_000 - 2, 4_102_444_800_000_000_000 + 2) | U64
VBUCKETS = st.sampled_from([0, 7, 1023, 65535])
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12).map(str.encode)
FRAMINGS = st.none() | st.none() | st.binary(max_size=4)


@st.composite
def keys(draw: st.DrawFn, settings: Settings) -> bytes:
    """Mostly text behind a right collection id; now and then neither."""
    text = draw(st.text(min_size=1, max_size=20).map(str.encode) | st.binary(min_size=1, max_size=9))
    if settings.collections is None:
        return text
    prefix = draw(
        st.sampled_from([0, 8, 0x9C, 0xFFFFFFFF]).map(CollectionId).map(encode_collection) | st.binary(max_size=6)
    )
    return (prefix + text)[:255]


@st.composite
def values(draw: st.DrawFn) -> tuple[int, bytes]:
    """A datatype and a value that it is true of; now and then it is not."""
    datatype = draw(st.integers(0, 7) | st.sampled_from([0x40, 0xFF]))
    if draw(st.integers(0, 9)) == 0:
        return datatype, draw(st.binary(max_size=40))
    value = draw(st.just(b"") | st.binary(max_size=40) | st.binary(max_size=8).map(lambda some: some * 40))
    if not value and draw(st.booleans()):
        return datatype, deflate(value)
    if datatype & Datatype.XATTR:
        value = join_xattrs(draw(st.dictionaries(TEXTS, TEXTS, max_size=3)), value)
    if datatype & Datatype.SNAPPY:
        value = deflate(value)
    return datatype, value


@st.composite
def changes(draw: st.DrawFn, settings: Settings) -> bytes:
    """A change of any kind, in any layout of the dialect."""
    kinds: list[Any] = [c.Mutation, c.Mutation, c.Deletion, c.Expiration, c.DcpFlush]
    kinds += [c.SystemEvent, c.SeqnoAdvanced] if settings.dialect is Dialect.DCP else []
    cls = draw(st.sampled_from(kinds))
    common = {"vbucket": draw(VBUCKETS), "opaque": draw(U32), "cas": draw(CLOCKS), "framing": draw(FRAMINGS)}
    if cls is c.DcpFlush:
        return encode(cls(**common), settings.dialect)
    common["by_seqno"] = draw(U64)
    if cls is c.SeqnoAdvanced:
        return encode(cls(**common), settings.dialect)
    if cls is c.SystemEvent:
        datatype, value = draw(values())
        common |= {"key": draw(TEXTS | st.binary(max_size=3)), "datatype": datatype, "value": value}
        return encode(cls(**common, event=draw(U32), version=draw(st.integers(0, 2))))
    datatype, value = draw(values())
    common |= {"rev_seqno": draw(U64), "key": draw(keys(settings)), "datatype": datatype}
    if cls is c.Mutation:
        numbers = {name: draw(st.just(0) | U32) for name in ("flags", "expiry", "lock_time")}
        meta = draw(st.just(b"") | st.binary(max_size=5))
        return encode(c.Mutation(**common, **numbers, value=value, meta=meta), settings.dialect)
    if settings.dialect is Dialect.UPR_DRAFT:
        return encode(cls(**common, flags=1, expiry=2, lock_time=3), settings.dialect)
    if settings.dialect is Dialect.DCP and draw(st.booleans()):
        common["delete_time"] = draw(U32)
    return encode(cls(**common, value=draw(st.sampled_from([b"", value]))), settings.dialect)


@st.composite
def others(draw: st.DrawFn, settings: Settings) -> bytes:
    """A message that is no change: markers in every form, ends, answers, and changes of a shape that nobody knows."""
    dialect = settings.dialect
    vbucket = draw(VBUCKETS)
    numbers = {"start_seqno": draw(U64), "end_seqno": draw(U64), "flags": draw(st.integers(0, 63))}
    made: list[Any] = [
        c.StreamEnd(vbucket=vbucket, reason=draw(st.integers(0, 9))),
        c.Noop(),
        c.FailoverLog(opcode=c.GetFailoverLog.spec.opcodes[dialect], entries=(c.FailoverEntry(1, 2),)),
        c.FailoverLog(opcode=c.StreamRequest.spec.opcodes[dialect], entries=(c.FailoverEntry(3, 0),)),
        c.ClustermapChangeNotification(epoch=1, revision=2, configuration=b"{}"),
    ]
    if dialect is not Dialect.UPR_DRAFT:
        made += [c.SnapshotMarker(vbucket=vbucket, framing=draw(FRAMINGS), **numbers)] * 3
    if dialect is Dialect.UPR:
        made += [c.SnapshotMarker(vbucket=vbucket)]
    if dialect is Dialect.DCP:
        made += [c.SnapshotMarker(vbucket=vbucket, **numbers, max_visible_seqno=5, high_completed_seqno=6)]
        made += [c.SnapshotMarker(vbucket=vbucket, **numbers, high_prepared_seqno=5, purge_seqno=6)]
    if draw(st.integers(0, 4)):
        return encode(draw(st.sampled_from(made)), dialect)
    body = draw(st.binary(max_size=60))
    extras = draw(st.sampled_from([0, 1, 4, 18, 20, 28, 30, 31, 40]).map(lambda size: min(size, len(body))))
    header = Header(
        magic=draw(st.sampled_from([Magic.REQUEST, Magic.RESPONSE])),
        opcode=draw(st.integers(0x50, 0x66)),
        framing_length=0,
        key_length=draw(st.integers(0, len(body) - extras)),
        extras_length=extras,
        datatype=draw(st.integers(0, 7)),
        specific=vbucket,
        body_length=len(body),
        opaque=1,
        cas=2,
    )
    return Frame(header, body).pack()


@st.composite
def streams(draw: st.DrawFn, settings: Settings) -> bytes:
    """Some frames, and perhaps something at the end that is none."""
    one = changes(settings) | changes(settings) | others(settings)
    frames = draw(st.lists(one, max_size=14))
    end = draw(st.just(b"") | st.just(b"") | st.binary(max_size=30) | st.just(b"\x80\x57\0\0\0\0\0\0\xff\xff\xff\xff"))
    return b"".join(frames) + end


@st.composite
def all_settings(draw: st.DrawFn) -> Settings:
    """Every way to read a connection, with limits small enough to be met."""
    return Settings(
        dialect=draw(st.sampled_from([Dialect.DCP, Dialect.DCP, Dialect.UPR, Dialect.UPR_DRAFT])),
        collections=draw(st.none() | st.just(COLLECTIONS)),
        keys=draw(st.sampled_from(["text", "binary"])),
        rows_max=draw(st.sampled_from([1, 3, 1 << 20])),
        value_bytes_max=draw(st.sampled_from([1, 60, 1 << 28])),
        key_bytes_max=draw(st.sampled_from([1, 30, 1 << 28])),
        inflated_bytes_max=draw(st.sampled_from([30, 1 << 20])),
        body_bytes_max=draw(st.sampled_from([100, 1 << 20])),
    )
