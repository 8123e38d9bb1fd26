"""Explaining captured bytes: any input to messages, any message to the table that the documents print.

This package owns the input formats (hex, JSON lines, pcap, binary), the cutting into messages, the choice
of the dialect, and the printing. What a message means is known by `headrace.wire.dissect` alone. Nothing
here fails on bad bytes: they become problems, notes or faults; only an input that cannot be read at all
raises `InputError`.

    from headrace.explain import Explained, explain, read_inputs, render_json

    for shown in explain(read_inputs(["capture.pcap"])):
        if isinstance(shown, Explained):
            print(render_json(shown))
"""

from headrace.explain.events import Comment, Fault, InputError, Note, Piece
from headrace.explain.inputs import STANDARD_INPUT, OnRead, input_bytes, is_hex, read_inputs
from headrace.explain.messages import UNREADABLE, Explained, Shown, explain
from headrace.explain.names import check_names, message_names
from headrace.explain.render import TextStyle, comment_line, render_json, render_text

__all__ = [
    "STANDARD_INPUT",
    "UNREADABLE",
    "Comment",
    "Explained",
    "Fault",
    "InputError",
    "Note",
    "OnRead",
    "Piece",
    "Shown",
    "TextStyle",
    "check_names",
    "comment_line",
    "explain",
    "input_bytes",
    "is_hex",
    "message_names",
    "read_inputs",
    "render_json",
    "render_text",
]
