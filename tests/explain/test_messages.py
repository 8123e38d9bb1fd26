import pytest

from headrace.explain import messages as messages_module
from headrace.explain.cutter import Cutter
from headrace.explain.dialects import DialectJudge
from headrace.explain.events import Ended, Event, Piece
from headrace.explain.messages import Explained, explain
from headrace.wire import Dialect
from tests.explain.packets import (
    CONTRADICTORY,
    DRAFT_STREAM,
    MUTATION,
    NOOP,
    NOOP_ANSWER,
    TAP_CONNECT,
    UPR_MUTATION,
    set_message,
)
from tests.explain.tools import messages, names


def _piece(data: bytes, *, whole: bool = False, missing: int = 0, conversation: str = "c") -> Piece:
    return Piece(conversation=conversation, direction="c2s", data=data, origin="here", whole=whole, missing=missing)


def _cuts(*pieces: Piece) -> list[tuple[bool, bytes]]:
    cutter = Cutter()
    found = [cut for piece in pieces for cut in cutter.feed(piece)] + list(cutter.finish())
    return [(cut.readable, cut.data) for cut in found]


@pytest.mark.parametrize("size", [1, 2, 23, 24, 25, 1000])
def test_any_chunking_gives_the_same_messages(size: int) -> None:
    """However a stream is cut into pieces, the messages are the same."""
    stream = NOOP + MUTATION + set_message(b"k", b"v" * 300) + NOOP
    pieces = [_piece(stream[place : place + size]) for place in range(0, len(stream), size)]
    assert [data for _, data in _cuts(*pieces)] == [NOOP, MUTATION, set_message(b"k", b"v" * 300), NOOP]


@pytest.mark.parametrize("size", [1, 5, 24, 1000])
def test_any_chunking_finds_the_way_again(size: int) -> None:
    """Garbage at the front of a stream is passed over, however it is cut."""
    stream = b"\x80garbage\x81" + NOOP[:7] + MUTATION + NOOP + MUTATION
    pieces = [_piece(stream[place : place + size]) for place in range(0, len(stream), size)]
    found = _cuts(_piece(b"\x01"), *pieces)
    assert [data for readable, data in found if readable] == [MUTATION, NOOP, MUTATION]


def test_a_whole_piece_may_be_longer_than_its_header() -> None:
    """What follows a message and begins no other belongs to it."""
    assert _cuts(_piece(CONTRADICTORY, whole=True)) == [(True, CONTRADICTORY)]
    assert _cuts(_piece(CONTRADICTORY + NOOP, whole=True)) == [(True, CONTRADICTORY), (True, NOOP)]
    with_common_byte = NOOP + b"\x08\x01"
    assert _cuts(_piece(with_common_byte, whole=True)) == [(True, with_common_byte)]


def test_a_whole_piece_may_be_shorter_than_its_header() -> None:
    """A message that ends early waits for its rest, and is shown without it when another one begins."""
    short = MUTATION[:40]
    assert _cuts(_piece(short, whole=True)) == [(True, short)]
    assert _cuts(_piece(short, whole=True), _piece(NOOP, whole=True)) == [(True, short), (True, NOOP)]
    rest = [_piece(bytes([byte]), whole=True) for byte in MUTATION[40:]]
    assert _cuts(_piece(short, whole=True), *rest) == [(True, MUTATION)]


def test_a_whole_piece_may_begin_with_garbage() -> None:
    """Without a message in it, a piece is one thing; with one, what stands before it is reported."""
    nothing = b"\x00" * 30
    assert _cuts(_piece(nothing, whole=True)) == [(True, nothing)]
    assert _cuts(_piece(b"\x00\x01" + MUTATION, whole=True)) == [(False, b"\x00\x01"), (True, MUTATION)]


LIAR = bytes.fromhex("8001000000000000ffffffff000000000000000000000000")


def test_a_header_that_promises_too_much_swallows_nothing() -> None:
    """In a small input, a body larger than any server takes ends where the next good message begins."""
    assert _cuts(_piece(NOOP + LIAR + b"rest" + MUTATION + NOOP, whole=True)) == [
        (True, NOOP),
        (True, LIAR + b"rest"),
        (True, MUTATION),
        (True, NOOP),
    ]
    assert _cuts(_piece(LIAR + b"rest", whole=True)) == [(True, LIAR + b"rest")]
    found = messages(NOOP + LIAR + MUTATION)
    assert names(found) == ["noop", "set", "mutation"]
    assert [bool(each.problems) for each in found] == [False, True, False]


def test_a_stream_that_ends_early() -> None:
    """The last message of a stream is shown as far as it goes."""
    assert _cuts(_piece(NOOP + MUTATION[:30])) == [(True, NOOP), (True, MUTATION[:30])]
    assert _cuts(_piece(NOOP + b"\x80")) == [(True, NOOP), (True, b"\x80")]


def test_a_hole_after_part_of_a_header() -> None:
    """A hole inside a header loses its message and no other."""
    found = _cuts(_piece(NOOP + b"\x80\x57", missing=63), _piece(NOOP + NOOP))
    assert found == [(True, NOOP), (False, b"\x80\x57"), (True, NOOP), (True, NOOP)]


def test_holes_in_a_row() -> None:
    """Several holes in one message are still inside it."""
    long = set_message(b"k", b"v" * 400)
    found = _cuts(
        _piece(long[:100], missing=100),
        _piece(long[200:250], missing=100),
        _piece(long[350:] + NOOP),
    )
    assert found == [(True, long[:100]), (True, NOOP)]
    found = _cuts(_piece(long[:100], missing=100), _piece(b"", missing=1000), _piece(NOOP + NOOP))
    assert found == [(True, long[:100]), (False, b""), (True, NOOP), (True, NOOP)]


DRAFT_LOG = bytes.fromhex("805100000000000c000000000000000d0000000000000000")


@pytest.mark.parametrize(
    ("conversation", "dialects"),
    [
        ([MUTATION], ["dcp"]),
        ([UPR_MUTATION], ["upr"]),
        ([DRAFT_STREAM], ["upr-draft"]),
        ([DRAFT_LOG], ["upr-draft"]),
        ([DRAFT_LOG, MUTATION, MUTATION], ["upr-draft"] * 3),
        ([MUTATION, DRAFT_LOG, MUTATION], ["dcp"] * 3),
        ([UPR_MUTATION, UPR_MUTATION, MUTATION], ["upr"] * 3),
        ([UPR_MUTATION, MUTATION], ["dcp"] * 2),
        ([TAP_CONNECT, UPR_MUTATION, NOOP], ["tap", "upr", "kv"]),
        ([TAP_CONNECT], ["tap"]),
        ([NOOP], ["kv"]),
    ],
)
def test_auto_dialect(conversation: list[bytes], dialects: list[str]) -> None:
    """A conversation is in the dialect that most of its messages fit, or that its first one proves."""
    found = messages("\n".join(each.hex() for each in conversation).encode())
    assert [each.dialect for each in found] == dialects


def test_auto_dialect_of_a_message_that_fits_nowhere() -> None:
    """Where nothing fits, the dialect with the fewest problems is taken."""
    judge = DialectJudge()
    judge.hear(UPR_MUTATION + b"more")
    judge.hear(b"\x80")
    judge.decide()
    judge.decide()
    assert judge.dialect_of(UPR_MUTATION) is Dialect.UPR


def test_a_dialect_that_lacks_an_opcode_does_not_win() -> None:
    """An opcode that a dialect lacks is worse than any problem, and undoes one message that fits."""
    control_with_extras = bytes.fromhex("805e0001040000000000000600000000000000000000000000000000") + b"kv"
    draft_only = bytes.fromhex("805500000000000000000000000000000000000000000000")  # a snapshot end
    for conversation in ([control_with_extras], [draft_only, control_with_extras]):
        found = messages("\n".join(each.hex() for each in conversation).encode())
        assert {each.dialect for each in found} == {"dcp"}
        assert found[-1].message == "control"
        assert found[-1].problems
    system_event = bytes.fromhex("805f00000000000000000000000000000000000000000000")
    found = messages("\n".join(each.hex() for each in [*[UPR_MUTATION] * 3, system_event]).encode())
    assert [each.dialect for each in found] == ["upr"] * 4


@pytest.mark.parametrize("opcode", range(0x50, 0x66), ids=hex)
def test_a_bare_header_is_known(opcode: int) -> None:
    """A lone header with any opcode of the family is a message that some dialect knows."""
    (found,) = messages(bytes([0x80, opcode, *bytes(22)]).hex().encode())
    assert found.dissection is not None
    assert found.dissection.known


def test_bytes_without_a_magic_do_not_judge() -> None:
    """Bytes that are no message say nothing about the dialect."""
    judge = DialectJudge()
    judge.hear(b"\x55" + UPR_MUTATION[1:])
    judge.decide()
    assert judge.dialect_of(b"\x55" + UPR_MUTATION[1:]) is Dialect.DCP


def test_fixed_dialect_is_taken_at_its_word() -> None:
    """A chosen dialect reads every message, also where it does not fit."""
    found = messages(UPR_MUTATION, dialect=Dialect.DCP)
    assert [each.dialect for each in found] == ["dcp"]
    assert found[0].problems


def _explained(events: list[Event]) -> list[str]:
    found = [each for each in explain(iter(events)) if isinstance(each, Explained)]
    return [f"{each.connection} {each.dialect}" for each in found]


def test_order_is_kept_over_conversations() -> None:
    """Messages come out in the order they were completed, though dialects are decided later."""
    events: list[Event] = [
        _piece(UPR_MUTATION, conversation="a"),
        _piece(MUTATION, conversation="b"),
        Ended(conversation="b"),
        Ended(conversation="nobody"),
        _piece(UPR_MUTATION, conversation="a"),
    ]
    assert _explained(events) == ["a upr", "b dcp", "a upr"]


@pytest.mark.parametrize(
    ("name", "value"), [("JUDGED_MESSAGES_MAX", 2), ("HELD_MESSAGES_MAX", 2), ("HELD_BYTES_MAX", 100)]
)
def test_no_message_waits_for_ever(monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    """Enough evidence, or too much that waits, decides a dialect."""
    monkeypatch.setattr(messages_module, name, value)
    taken = 0

    def events():
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield _piece(UPR_MUTATION)

    first = next(explain(events()))
    assert isinstance(first, Explained)
    assert first.dialect == "upr"
    assert taken < 5


def test_both_directions_in_one_binary() -> None:
    """Requests and responses that stand in one file are cut alike."""
    assert names(messages(NOOP + NOOP_ANSWER)) == ["noop", "noop"]
