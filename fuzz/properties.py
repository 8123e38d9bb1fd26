"""What holds for any bytes, in any pieces and any dialect: messages, or one RemoteProtocolError, and nothing else.

The fuzz target runs this under libFuzzer, the tests over examples of hypothesis.
"""

from headrace.errors import RemoteProtocolError
from headrace.wire import (
    NEED_DATA,
    Dialect,
    Frame,
    FrameReader,
    Header,
    Limits,
    Malformed,
    Message,
    NeedData,
    Unknown,
    decode,
    dissect,
    encode,
    fits,
)

DIALECTS = tuple(Dialect)
LIMITS = Limits(body_bytes_max=1 << 16, buffered_bytes_max=1 << 20)
_HEADER_BYTES = 24


def check_reader(pieces: list[bytes], dialect: Dialect) -> list[Message]:
    """Read pieces to their end; frames and messages go back to the same bytes, and an error stays the same for ever."""
    reader = FrameReader(LIMITS)
    found = []
    taken = 0
    for piece in pieces:
        reader.receive(piece)
        while isinstance(frame := _next(reader), Frame):
            message = decode(frame, dialect)
            assert encode(message, dialect) == frame.pack()
            found.append(message)
            taken += _HEADER_BYTES + len(frame.body)
            assert reader.offset == taken
        if frame is not NEED_DATA:
            assert taken <= frame.offset < taken + _HEADER_BYTES
            reader.receive(bytes(_HEADER_BYTES))
            again = _next(reader)
            assert isinstance(again, RemoteProtocolError)
            assert (again.text, again.offset) == (frame.text, frame.offset)
            break
    return found


def _next(reader: FrameReader) -> Frame | NeedData | RemoteProtocolError:
    try:
        return reader.next_frame()
    except RemoteProtocolError as error:
        return error


def check_dissection(data: bytes, dialect: Dialect) -> None:
    """Take bytes apart: fields in their order, within the data, spelling it; right exactly where decoding is."""
    dissection = dissect(data, dialect)
    end = 0
    for view in dissection.fields:
        assert view.length > 0
        assert end <= view.offset
        end = view.offset + view.length
        assert end <= len(data)
        raw = data[view.offset : end]
        spelled = view.value.to_bytes(view.length) if isinstance(view.value, int) else view.value
        assert (spelled.encode() if isinstance(spelled, str) else spelled) == raw
    for problem in dissection.problems:
        assert 0 <= problem.offset <= len(data)
        assert " -" not in problem.text, "a negative count"
    assert fits(data, dialect) is _decodes(data, dialect)
    if _is_frame(data):
        assert sum(view.length for view in dissection.fields) == len(data), "bytes that no field shows"


def _is_frame(data: bytes) -> bool:
    """Whether the header agrees with the bytes: then every byte has its place, be the message right or wrong."""
    if len(data) < _HEADER_BYTES:
        return False
    header = Header.parse(data)
    return header.problem(len(data)) is None and len(data) == _HEADER_BYTES + header.body_length


def _decodes(data: bytes, dialect: Dialect) -> bool:
    try:
        return not isinstance(decode(data, dialect), Unknown | Malformed)
    except RemoteProtocolError:
        return False


def cut(data: bytes, size: int) -> list[bytes]:
    """Cut bytes into pieces of a size; 0 leaves them whole."""
    step = size or max(len(data), 1)
    return [data[start : start + step] for start in range(0, len(data), step)]


def one_input(data: bytes) -> None:
    """Check what the fuzzer thought of."""
    if len(data) < 2:
        return
    dialect = DIALECTS[data[0] % len(DIALECTS)]
    rest = data[2:]
    check_reader(cut(rest, data[1]), dialect)
    check_dissection(rest, dialect)
