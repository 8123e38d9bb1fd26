"""Bytes <-> messages, for TAP, UPR's draft, UPR and DCP. Pure: no socket, no clock, no randomness.

frame    24-byte header and body                 header, framing, frame_info
message  a frozen value of the catalogue         catalogue, message, fields, codes
codec    frame <-> message, in a dialect         codec, plan, registry
dissect  any bytes -> the documents' tables      dissect
values   collection ids, xattrs, snappy          leb128, xattrs, snappy
"""

from headrace.wire import catalogue, codes
from headrace.wire.codec import Malformed, Unknown, decode, encode
from headrace.wire.dialects import Dialect
from headrace.wire.dissect import Dissection, FieldView, Problem, dissect, fits, message_length
from headrace.wire.frame_info import FrameInfo, join_frame_infos, split_frame_infos
from headrace.wire.framing import NEED_DATA, FrameReader, NeedData
from headrace.wire.header import Frame, Header
from headrace.wire.leb128 import encode_collection, split_collection
from headrace.wire.limits import Limits
from headrace.wire.message import Kind, Message, Request, Response
from headrace.wire.snappy import deflate, inflate
from headrace.wire.xattrs import join_xattrs, split_xattrs

__all__ = [
    "NEED_DATA",
    "Dialect",
    "Dissection",
    "FieldView",
    "Frame",
    "FrameInfo",
    "FrameReader",
    "Header",
    "Kind",
    "Limits",
    "Malformed",
    "Message",
    "NeedData",
    "Problem",
    "Request",
    "Response",
    "Unknown",
    "catalogue",
    "codes",
    "decode",
    "deflate",
    "dissect",
    "encode",
    "encode_collection",
    "fits",
    "inflate",
    "join_frame_infos",
    "join_xattrs",
    "message_length",
    "split_collection",
    "split_frame_infos",
    "split_xattrs",
]
