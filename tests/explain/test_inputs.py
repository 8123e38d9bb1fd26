import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.explain import Explained, explain, limits
from headrace.explain import hextext as hextext_module
from headrace.explain import inputs as inputs_module
from headrace.explain import source as source_module
from headrace.explain.capture import read_capture
from headrace.explain.events import Comment, Fault, InputError, Piece
from headrace.explain.hextext import parse_hex, read_text
from headrace.explain.inputs import read_inputs
from headrace.explain.limits import FAULTS_MAX
from tests.explain.packets import CONTRADICTORY, MUTATION, NOOP, NOOP_ANSWER, TAP_CONNECT, one_way, set_message, tcp
from tests.explain.tools import messages, names, shown


@pytest.mark.parametrize(
    "text",
    [
        "80570005",
        "0x80570005",
        "0x80 0x57 0x00 0x05",
        "80:57:00:05",
        "80 57\n00 05\r\n",
        "0x80,0x57,0X00,0x05",
        "8057_0005;",
    ],
)
def test_hex_in_any_spacing(text: str) -> None:
    """Hex is read with or without 0x, spaces, colons, commas and newlines."""
    assert parse_hex(text) == b"\x80\x57\x00\x05"


@pytest.mark.parametrize(
    ("text", "words"), [("80 5", "3 hex digits"), ("0x80 xy", "'x' at character 6"), ("8ü", "'\\xfc' at character 2")]
)
def test_bad_hex_says_where(text: str, words: str) -> None:
    """What is no hex is named with its place."""
    with pytest.raises(InputError) as raised:
        parse_hex(text)
    assert words in str(raised.value)


def test_hex_arguments_are_one_message_or_several() -> None:
    """Words of one message are joined; a word that is a message of its own stays one."""
    split = [MUTATION.hex()[place : place + 16] for place in range(0, 2 * len(MUTATION), 16)]
    pieces = [event for event in read_inputs(split) if isinstance(event, Piece)]
    assert [piece.data for piece in pieces] == [MUTATION]
    pieces = [event for event in read_inputs([CONTRADICTORY.hex(), NOOP.hex()]) if isinstance(event, Piece)]
    assert [piece.data for piece in pieces] == [CONTRADICTORY, NOOP]
    assert [piece.origin for piece in pieces] == ["argument 1", "argument 2"]


@pytest.mark.parametrize(
    "command",
    [
        ["xxd"],
        ["xxd", "-p"],
        ["xxd", "-g1", "-u"],
        ["hexdump", "-C"],
        ["od", "-A", "x", "-t", "x1z"],
        ["od", "-A", "o", "-t", "x1"],
        ["od", "-A", "d", "-t", "x1"],
    ],
    ids=" ".join,
)
def test_dumps_of_real_tools(command: list[str]) -> None:
    """What xxd, hexdump and od print is read back, with rows that repeat."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    data = set_message(b"key", b"\x00" * 100 + b"end  of it") + MUTATION
    dump = subprocess.run(command, input=data, capture_output=True, check=True).stdout
    assert b"".join(chunk for _, chunk in read_text(dump.decode())) == data


def test_dump_of_tshark() -> None:
    """Rows with short offsets and a column of characters after three spaces are read."""
    text = "0000  80 0a 00 00 00 00 00 00 00 00 00 00 00 00 00 07   ................\n"
    text += "0010  00 00 00 00 00 00 00 00                           ........\n"
    assert read_text(text + "\n" + text) == [("the dump at line 1", NOOP), ("the dump at line 4", NOOP)]


def test_dump_whose_repetition_is_too_long() -> None:
    """A `*` that stands for more than the limit is refused with the limit and the way out."""
    with pytest.raises(InputError, match=r"a dump may have 16 MiB \(16777216 bytes\).*xxd -r"):
        read_text("00000000  80 0a\n*\nf0000000\n")


@pytest.mark.parametrize(
    "text", ["*\n00000000  80\n", "00000000  80\n*\n*\n00000009\n", "00000000  80\n00000009  80\n", "zzzz  80\n"]
)
def test_broken_dumps(text: str) -> None:
    """Offsets that do not add up make no dump, and then the text is no hex."""
    with pytest.raises(InputError):
        read_text(text)


def test_pictures_are_read_back() -> None:
    """The byte pictures of the documents, in both their styles, are an input."""
    text = """
      Byte/     0       |       1       |       2       |       3       |
        +---------------+---------------+---------------+---------------+
       0| 0x80          | 0x0a          | 0x00          | 0x6e ('n')    |
        +---------------+---------------+---------------+---------------+
       4|    7c ('|')   |
    Field        (offset) (value)
       0|       80      |    40 ('@')   |
    """
    assert read_text(text) == [
        ("the picture at line 4", b"\x80\x0a\x00\x6e\x7c"),
        ("the picture at line 8", b"\x80\x40"),
    ]


def test_picture_with_a_row_missing() -> None:
    """A picture whose offsets do not add up is refused at the line."""
    with pytest.raises(InputError, match=r"line 2: .* says byte 8, it is byte 2"):
        read_text("0| 80 | 0a |\n8| 00 |")


def test_comments_in_hex_text() -> None:
    """A `#` begins a comment, on a line of its own and after hex."""
    assert messages(f"# noop\n{NOOP.hex()}  # the end\n".encode())[0].message == "noop"


def test_one_message_per_line() -> None:
    """Each line of a hex file is a message, even one that contradicts its header."""
    found = messages("\n".join(each.hex() for each in (NOOP, CONTRADICTORY, NOOP_ANSWER)).encode())
    assert [len(each.data) for each in found] == [24, 72, 24]
    assert [each.origin.split(" of ")[0] for each in found] == ["line 1", "line 2", "line 3"]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (NOOP, "noop"),
        (NOOP.hex().encode(), "noop"),
        (b"\xef\xbb\xbf" + NOOP.hex().encode(), "noop"),
        (b'{"scenario": "x"}\n' + json.dumps({"dir": "c2s", "hex": NOOP.hex()}).encode(), "noop"),
        (TAP_CONNECT, "tap_connect"),
    ],
)
def test_sniffing(data: bytes, name: str) -> None:
    """The kind of an input is found from its first bytes."""
    assert names(messages(data)) == [name]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"# nothing\n", "comments and no bytes"),
        (b"00000000: 80zz\n", "neither hex nor a capture"),
        (b"\x1f\x8b\x08", "gunzip"),
        (b"hello world", "neither hex nor a capture"),
        (b"80 " * 2000 + b"\xff", "and then comes byte 0xff at 6000"),
        (b"\x00\x01\x02", "begin no message"),
    ],
)
def test_nonsense_is_refused(data: bytes, words: str) -> None:
    """An input that is nothing known is refused with what was wrong."""
    with pytest.raises(InputError) as raised:
        shown(data)
    assert words in str(raised.value)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that is hex and an existing file is the file; a directory and a missing file are refused."""
    (tmp_path / "80").write_bytes(NOOP)
    monkeypatch.chdir(tmp_path)
    events = list(read_inputs(["80"]))
    assert [event.data for event in events if isinstance(event, Piece)] == [NOOP]
    with pytest.raises(InputError, match="is a directory"):
        list(read_inputs([str(tmp_path)]))
    with pytest.raises(InputError, match="neither an existing file nor hex"):
        list(read_inputs(["missing.pcap"]))
    with pytest.raises(InputError, match="neither an existing file nor hex"):
        list(read_inputs(["zz" * 5000]))


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be opened is refused with the system's reason."""
    path = tmp_path / "locked"
    path.write_bytes(NOOP)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        list(read_inputs([str(path)]))


def test_size_limits_are_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a text or a line past its limit is refused with the limit and the way out."""
    path = tmp_path / "large"
    path.write_bytes(NOOP * 10)
    monkeypatch.setattr(inputs_module, "FILE_BYTES_MAX", 100)
    with pytest.raises(InputError, match=r"longer than 100 bytes, .* editcap -c 100000 big\.pcap part\.pcap"):
        list(read_inputs([str(path)]))
    monkeypatch.setattr(inputs_module, "TEXT_BYTES_MAX", 10)
    with pytest.raises(InputError, match=r"longer than 10 bytes, the most for hex; .* xxd -r -p"):
        shown(NOOP.hex().encode())
    monkeypatch.setattr(hextext_module, "TEXT_LINES_MAX", 2)
    with pytest.raises(InputError, match=r"more than 2 lines, .* xxd -r -p"):
        read_text("80\n" * 3)
    monkeypatch.setattr(source_module, "LINE_BYTES_MAX", 10)
    with pytest.raises(InputError, match="a line longer than 10 bytes"):
        shown(b'{"dir": "note", "text": "long"}')
    monkeypatch.setattr(source_module, "FILE_BYTES_MAX", 100)
    with pytest.raises(InputError, match=r"longer than 100 bytes, .* editcap"):
        shown(NOOP * 10)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (limits.FILE_BYTES_MAX, "1 GiB (1073741824 bytes)"),
        (limits.TEXT_BYTES_MAX, "16 MiB (16777216 bytes)"),
        (2048, "2 KiB (2048 bytes)"),
        (1500, "1500 bytes"),
    ],
)
def test_sizes_in_words(count: int, words: str) -> None:
    """A size is written in the largest unit that divides it, and in bytes."""
    assert limits.size(count) == words


def test_closed_and_broken_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input that is closed, or that the system cannot read, is refused with the reason."""
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        list(read_inputs(["-"]))

    class Broken(io.BytesIO):
        def read1(self, _: int | None = -1, /) -> bytes:
            raise OSError(5, "no")

    with pytest.raises(InputError, match="standard input cannot be read: Input/output error"):
        list(read_inputs(["-"], standard_input=Broken()))


def _origins(*arguments: str, data: bytes = b"") -> list[str]:
    events = read_inputs(arguments, standard_input=io.BytesIO(data))
    return [each.origin for each in explain(events) if isinstance(each, Explained)]


def test_origins_in_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of a binary input is found at a byte, in a small input and in a large one, after garbage too."""
    data = NOOP + MUTATION + b"\x01\x02\x03" + NOOP + MUTATION
    places = [f"byte {place} of standard input" for place in (0, 24, 92, 116)]
    assert _origins("-", data=data) == places  # what follows a message in a small input belongs to it
    monkeypatch.setattr(inputs_module, "WHOLE_BYTES_MAX", 50)
    monkeypatch.setattr(source_module, "CHUNK_BYTES", 7)
    garbage = "byte 89 of standard input"
    assert _origins("-", data=data) == [*places[:2], garbage, *places[2:]]


def test_origins_in_hex_arguments() -> None:
    """A message in hex is found in its argument, and at its byte there if it is not the first."""
    assert _origins(NOOP.hex()) == ["argument 1"]
    assert _origins((NOOP + MUTATION).hex(), NOOP.hex()) == ["argument 1", "byte 24 of argument 1", "argument 2"]
    joined = (NOOP + MUTATION).hex()
    assert _origins(joined[:20], joined[20:60], joined[60:]) == ["argument 1", "byte 14 of argument 2"]


def test_origins_in_text() -> None:
    """A message in hex text is found on its line, and at its byte there if it is not the first."""
    wrapped = "\n".join((NOOP + MUTATION).hex()[place : place + 60] for place in range(0, 178, 60))
    assert _origins("-", data=wrapped.encode()) == ["line 1 of standard input", "byte 24 of line 1 of standard input"]
    dump = (
        "0000  80 0a 00 00 00 00 00 00 00 00 00 00 00 00 00 07\n0010  00 00 00 00 00 00 00 00 80 0a 00 00 00 00 00 00"
    )
    dump += "\n0020  00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 00\n"
    first = "the dump at line 1 of standard input"
    assert _origins("-", data=dump.encode()) == [first, f"byte 24 of {first}"]
    line = json.dumps({"dir": "c2s", "hex": (NOOP + NOOP).hex()}).encode()
    assert _origins("-", data=line) == ["line 1 of standard input", "byte 24 of line 1 of standard input"]


def test_origins_of_a_message_that_two_lines_share() -> None:
    """A message is found where it begins; what follows it on the second line is found there."""
    halves = (NOOP + MUTATION[:40]).hex(), (MUTATION[40:] + NOOP).hex()
    lines = b"\n".join(json.dumps({"dir": "c2s", "hex": half}).encode() for half in halves)
    first, second = "line 1 of standard input", "line 2 of standard input"
    assert _origins("-", data=lines) == [first, f"byte 24 of {first}", f"byte 25 of {second}"]


@pytest.mark.parametrize("text", [b"\x01", b"\x01\x02"])
def test_one_is_no_plural(text: bytes) -> None:
    """One byte begins no message, two begin none."""
    words = "1 byte that begins no message" if len(text) == 1 else "2 bytes that begin no message"
    with pytest.raises(InputError, match=words):
        shown(text)


def test_large_binary_is_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary input too large to be one message is cut as it is read."""
    monkeypatch.setattr(inputs_module, "WHOLE_BYTES_MAX", 100)
    monkeypatch.setattr(source_module, "CHUNK_BYTES", 7)
    assert names(messages((NOOP + MUTATION) * 20)) == ["noop", "mutation"] * 20


def test_live_input():
    """A source takes what is there and does not wait for more than it needs."""

    class Slow(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            assert size
            return super().read1(min(5, size))

    data = (NOOP + MUTATION) * 3
    for whole in (data, data.hex().encode(), one_way(tcp(1, data))):
        found = [
            each.message
            for each in explain(read_inputs(["-"], standard_input=Slow(whole)))
            if isinstance(each, Explained)
        ]
        assert found == ["noop", "mutation"] * 3


def _capture(*lines: object) -> list[bytes]:
    return [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]


def test_capture_lines() -> None:
    """A capture's scenario and notes are comments, its frames pieces of the connection they name."""
    events = list(
        read_capture(
            _capture(
                {"scenario": "first", "server": "4.1.2", "note": ""},
                {"dir": "note", "text": "now"},
                b"",
                {"dir": "c2s", "hex": NOOP.hex(), "conn": "a", "t": 0.1},
                {"dir": "s2c", "hex": NOOP_ANSWER.hex()},
                {},
            ),
            "file",
        )
    )
    assert events[:2] == [Comment(text="first; 4.1.2"), Comment(text="now")]
    assert [(event.conversation, event.direction) for event in events[2:] if isinstance(event, Piece)] == [
        ("a", "c2s"),
        ("main", "s2c"),
    ]
    assert isinstance(events[2], Piece)
    assert events[2].origin == "line 4 of file"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "no JSON object"),
        (b"\xff", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b"[]", "must be a JSON object"),
        ({"dir": "up", "hex": ""}, '"dir" is'),
        ({"dir": "c2s"}, '"hex" must hold'),
        ({"dir": "c2s", "hex": "8"}, "1 hex digit is half"),
    ],
)
def test_damaged_capture_lines(line: object, words: str) -> None:
    """A damaged line is a fault with its number, and the lines after it are read."""
    events = list(read_capture(_capture(line, {"dir": "note", "text": "on"}), "file"))
    assert isinstance(events[0], Fault)
    assert words in events[0].text
    assert events[0].origin == "line 1 of file"
    assert events[1] == Comment(text="on")


def test_too_many_damaged_lines() -> None:
    """A file that is no capture is given up after some lines."""
    events = list(read_capture([b"{"] * 1000, "file"))
    assert len(events) == FAULTS_MAX + 1
