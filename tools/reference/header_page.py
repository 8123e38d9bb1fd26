"""The page on what all messages share: header, framing, datatypes, limits, collection prefix, xattrs.

Offsets and lengths come from dissecting an empty message, limits from the source of limits.py, and the bytes of the
examples from the functions that write them.
"""

import ast
import inspect
import itertools

from headrace.ids import CollectionId
from headrace.wire import Dialect, FieldView, dissect, encode_collection, join_xattrs, limits
from headrace.wire.codes import Datatype, Magic, words
from headrace.wire.header import FLEXIBLE_MAGICS
from tools.reference.markdown import anchor, bullets, fenced, link, page, picture, table

SOURCE = "src/headrace/wire/header.py, framing.py, limits.py, leb128.py and xattrs.py"
_NOOP = 0x0A
_MEANING = {
    "magic": "who speaks, and which form of header this is",
    "opcode": "which command",
    "framing_length": "length of the framing extras, which come first in the body",
    "key_length": "length of the key",
    "extra_length": "length of the extras",
    "data_type": "how the value is to be read, see below",
    "vbucket": "in requests: the vbucket meant",
    "status": "in answers: what became of the request",
    "total_body": "length of all that follows these 24 bytes",
    "opaque": "chosen by who asks, sent back by who answers; all messages of a stream carry its opaque",
    "cas": "the version of the item",
}
_MAGIC_MEANING = {
    Magic.REQUEST: "a request",
    Magic.RESPONSE: "an answer",
    Magic.FLEXIBLE_REQUEST: "a request with framing extras",
    Magic.FLEXIBLE_RESPONSE: "an answer with framing extras",
    Magic.SERVER_REQUEST: "a request that the server starts; its opcodes are a set of their own",
    Magic.SERVER_RESPONSE: "an answer to that",
}
_DATATYPE_MEANING = {
    Datatype.JSON: "the document is JSON",
    Datatype.SNAPPY: "the value is a snappy block, without snappy's framing; all of it, xattrs included",
    Datatype.XATTR: "a block of extended attributes stands in front of the document",
}
_COLLECTIONS = (0x00, 0x08, 0x7F, 0x80, 0x1234, 0xFFFF_FFFF)

_FLEXIBLE = """## The flexible header

It parts the key length in two, to make room for framing extras. A key has at most 255 bytes then."""
_RULES = (
    "The body is framing extras, extras, engine-specific bytes (TAP alone), key, value and metadata, in this order.",
    "Total body counts all of it. The header has no length for the value: it is what is left.",
    "A total body smaller than framing extras, extras and key together is refused, at offset 8.",
    f"A total body larger than `BODY_BYTES_MAX` ({limits.BODY_BYTES_MAX} by default) is refused at its header.",
    "A first byte that is no magic is refused. Nothing behind it in that stream has a meaning.",
    "An opcode that the dialect lacks is no error of framing. The message is `Unknown` and keeps its bytes.",
    "A body that fits no layout of its command is `Malformed`. It keeps its bytes too, and names the byte.",
    "One port serves all dialects. What UPR and DCP lack is looked for in TAP, and what TAP lacks in DCP.",
)
_PREFIX = """## Collection prefix

Where both sides agreed on collections, each key stands behind the id of its collection. The id is unsigned LEB128:
seven bits a byte, the lowest first, the top bit set on all bytes but the last. It has at most 5 bytes. An id that is
written longer than needed is refused."""


def header_page() -> str:
    """docs/protocol/header.md."""
    return page(
        "Header, framing and values",
        SOURCE,
        f"Every message of every dialect begins with the same {limits.HEADER_BYTES} bytes.",
        *_forms(),
        *_magics(),
        *_framing(),
        *_datatypes(),
        *_collections(),
        *_xattrs(),
        "## Limits\n\nThe bounds of `headrace.wire`, by name. Each is checked before memory is taken.",
        table(["name", "value", "what it bounds"], _limit_rows()),
    )


def _fields(magic: Magic) -> tuple[FieldView, ...]:
    empty = bytes([magic, _NOOP]) + bytes(limits.HEADER_BYTES - 2)
    return dissect(empty, Dialect.DCP).fields


def _forms() -> list[str]:
    return [
        "## The classic header",
        _form(Magic.REQUEST),
        "An answer has a status in the place of the vbucket:",
        _form_table([view for view in _fields(Magic.RESPONSE) if view.name == "status"]),
        _FLEXIBLE,
        _form(Magic.FLEXIBLE_REQUEST),
    ]


def _form(magic: Magic) -> str:
    views = _fields(magic)
    return "\n\n".join([fenced(picture([(view.label, view.length) for view in views])), _form_table(views)])


def _form_table(views: tuple[FieldView, ...] | list[FieldView]) -> str:
    rows = ([view.label, str(view.offset), str(view.length), _MEANING[view.name]] for view in views)
    return table(["field", "offset", "bytes", "what it is"], rows)


def _magics() -> list[str]:
    rows = (
        [
            f"0x{magic:02x}",
            words(magic.name),
            _MAGIC_MEANING[magic],
            "flexible" if magic in FLEXIBLE_MAGICS else "classic",
        ]
        for magic in Magic
    )
    return ["## Magics", table(["magic", "name", "what it begins", "header"], rows)]


def _framing() -> list[str]:
    return ["## Framing", bullets(_RULES)]


def _datatypes() -> list[str]:
    rows = ([f"0x{bit:02x}", words(bit.name or ""), _DATATYPE_MEANING[bit]] for bit in Datatype)
    where = link("Datatype", f"codes.md#{anchor(Datatype.__name__)}")
    return [
        f"## Datatype bits\n\nThe field *Data type*, as {where}. Without a bit the value is plain bytes.",
        table(["bit", "name", "what it says"], rows),
        f"`inflate` refuses a block that claims more than `INFLATED_BYTES_MAX` ({limits.INFLATED_BYTES_MAX}) bytes.",
    ]


def _collections() -> list[str]:
    rows = ([f"0x{number:x}", encode_collection(CollectionId(number)).hex(" ")] for number in _COLLECTIONS)
    return [
        _PREFIX,
        table(["collection", "prefix"], rows),
    ]


def _xattrs() -> list[str]:
    pairs = {b"_sync": b'{"rev":1}', b"a": b"2"}
    example = join_xattrs(pairs, b"{}")
    rows = [
        ["4", "length of all pairs together, their own lengths included"],
        ["4", "length of this pair: name, text and both zero bytes; repeated for each pair"],
        ["any", "name, zero byte, JSON text, zero byte; repeated for each pair"],
        ["the rest", "the document"],
    ]
    return [
        "## Xattr block\n\nA value with the bit `xattr` begins with its extended attributes:",
        table(["bytes", "what it is"], rows),
        (
            "A name that stands twice, a pair without its two zero bytes, or a length that leads out of the block is "
            'refused. `_sync` as `{"rev":1}` and `a` as `2`, in front of the document `{}`:'
        ),
        fenced(example.hex(" ", -4)),
    ]


def _limit_rows() -> list[list[str]]:
    """Each constant of limits.py with its value, and the first sentence group of the text under it."""
    body = ast.parse(inspect.getsource(limits)).body
    rows = []
    for statement, text in itertools.pairwise(body):
        if isinstance(statement, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            name = ast.unparse(statement.targets[0])
            rows.append([f"`{name}`", str(getattr(limits, name)), inspect.cleandoc(str(text.value.value))])
    return rows
