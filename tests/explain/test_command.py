import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace import __version__
from headrace.cli import app
from headrace.cli import explain as explain_command
from headrace.cli.explain import EXAMPLES, EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from headrace.explain import message_names
from headrace.wire import Dialect, fits
from tests.explain.packets import CONTRADICTORY, MUTATION, NOOP, one_way, pcapng, set_message, tcp
from tests.explain.tools import json_lines, run
from tests.wire.vectors import Captured, captures

TABLE = """\
Field        (offset) (value)
Magic        (0)    : 0x80 (request)
Opcode       (1)    : 0x57 (mutation)
Key length   (2,3)  : 0x0005 (5)
Extra length (4)    : 0x1f
Data type    (5)    : 0x00
Vbucket      (6,7)  : 0x0210 (528)
Total body   (8-11) : 0x00000029 (41)
Opaque       (12-15): 0x00001210
CAS          (16-23): 0x0000000000000000
  by seqno   (24-31): 0x0000000000000004
  rev seqno  (32-39): 0x0000000000000001
  flags      (40-43): 0x00000000
  expiration (44-47): 0x00000000
  lock time  (48-51): 0x00000000
  nmeta      (52-53): 0x0000
  nru        (54)   : 0x00
Key          (55-59): hello
Value        (60-64): world
"""


def test_table() -> None:
    """The table is the one that the documents print."""
    result = run(MUTATION.hex())
    assert result.exit_code == 0
    heading, table = result.stdout.split("\n", 1)
    assert heading.startswith("DCP_MUTATION command")
    assert table == TABLE
    assert result.stderr == "1 message, 0 with problems\n"


def test_picture() -> None:
    """The picture is drawn as in the documents, and read back as the same bytes."""
    result = run("--picture", MUTATION.hex())
    lines = result.stdout.splitlines()
    assert lines[1] == "      Byte/     0       |       1       |       2       |       3       |"
    assert lines[5] == "       0| 0x80          | 0x57          | 0x00          | 0x05          |"
    assert "      52| 0x00          | 0x00          | 0x00          | 0x68 ('h')    |" in lines
    assert "      64| 0x64 ('d')    |" in lines
    again = run("--output", "json", data="\n".join(lines).encode())
    assert [entry["length"] for entry in json_lines(again)] == [len(MUTATION)]


def test_long_values_are_cut() -> None:
    """Long values and pictures are cut, and shown whole on demand."""
    text, octets = set_message(b"k", b"v" * 2000).hex(), set_message(b"k", b"\xff" * 2000).hex()
    short = run("--picture", text, octets).stdout
    assert short.count("… (2000 bytes)") == 2
    assert short.count("… (2033 bytes)") == 2
    whole = run("--picture", "--full", text, octets).stdout
    assert "…" not in whole
    assert "v" * 2000 in whole
    assert "0x" + "ff" * 2000 in whole


def test_contradiction() -> None:
    """A message that contradicts its header is read as far as it goes, with the byte that is wrong."""
    result = run("--dialect", "upr", CONTRADICTORY.hex())
    assert result.exit_code == 2
    assert "(64-71): 0x0000000000ffeeff" in result.stdout
    assert "! byte 4: " in result.stdout
    assert result.stderr == "1 message, 1 with problems\n"


def test_json_shape() -> None:
    """A line of JSON has all its names, with offsets from the start of the message."""
    (entry,) = json_lines(run("--output", "json", MUTATION.hex()))
    fields = {each["name"]: each for each in entry.pop("fields")}
    assert entry == {
        "dialect": "dcp",
        "message": "mutation",
        "kind": "request",
        "opcode": 0x57,
        "problems": [],
        "connection": "hex",
        "direction": None,
        "origin": "argument 1",
        "length": 65,
    }
    assert fields["key"] == {
        "name": "key",
        "offset": 55,
        "length": 5,
        "value": "hello",
        "hex": "68656c6c6f",
        "meaning": "",
    }
    assert fields["magic"]["value"] == 0x80
    assert fields["magic"]["meaning"] == "request"


def test_json_of_bytes_and_of_no_message() -> None:
    """Bytes that are no text are hex and say so; bytes that are no message have no opcode."""
    message = set_message(b"k", b"\xff\x00")
    entries = json_lines(run("--output", "json", data=b"\x00\x01" + message))
    assert (entries[0]["message"], entries[0]["opcode"], entries[0]["hex"]) == ("unreadable", None, "0001")
    value = entries[1]["fields"][-1]
    assert (value["value"], value["encoding"], value["hex"]) == ("ff00", "hex", "ff00")


@pytest.mark.parametrize("data", [b"\x55" + NOOP[1:], NOOP[:10], b"\x80"], ids=["no magic", "half", "one byte"])
def test_no_header_is_no_message(data: bytes) -> None:
    """Bytes without a whole header are unreadable: no opcode, no kind, and one form in text."""
    (entry,) = json_lines(run("--output", "json", data.hex()))
    assert (entry["message"], entry["kind"], entry["opcode"]) == ("unreadable", None, None)
    assert (entry["fields"], entry["hex"]) == ([], data.hex())
    result = run(data.hex())
    assert result.exit_code == 2
    assert result.stdout.startswith(f"NO MESSAGE\nBytes: 0x{data.hex()}\n! byte ")
    assert "       0| 0x" in run("--picture", data.hex()).stdout


def test_garbage_before_a_message_is_no_message() -> None:
    """Garbage has the form of any other bytes that are no message."""
    assert "NO MESSAGE\nBytes: 0x5555\n! byte 0: 2 bytes begin" in run("5555" + MUTATION.hex()).stdout


LEGAL_ELSEWHERE = {
    "3.0.3/03b_dcp_malformed:25": ("upr", "stream_request"),
    "4.1.2/03b_dcp_malformed:25": ("upr", "stream_request"),
    "4.1.2/07b_consumer_errors:89": ("upr", "mutation"),
    "4.1.2/07b_consumer_errors:135": ("upr-draft", "snapshot_end"),
}
"""What is wrong in DCP and, seen alone, a right message of an older dialect."""

MALFORMED = [one for one in captures() if not fits(one.wire, Dialect.DCP)]


@pytest.mark.parametrize("one", MALFORMED, ids=lambda one: one.id)
def test_what_was_sent_wrong_on_purpose_is_told(one: Captured) -> None:
    """A malformed frame of the captures, pasted alone, is shown with its problem under its name."""
    found = {choice: run("--output", "json", "--dialect", choice, one.wire.hex()) for choice in ("dcp", "auto")}
    if one.id in LEGAL_ELSEWHERE:
        (entry,) = json_lines(found.pop("auto"))
        assert (entry["dialect"], entry["message"]) == LEGAL_ELSEWHERE[one.id]
    for result in found.values():
        (entry,) = json_lines(result)
        assert result.exit_code == 2
        assert entry["problems"]
        assert entry["message"] != "unknown"


def test_malformed_frames_are_there() -> None:
    """The captures hold frames that were sent wrong on purpose."""
    assert len(MALFORMED) > 40
    assert set(LEGAL_ELSEWHERE) <= {one.id for one in MALFORMED}


def test_places_of_hex_arguments() -> None:
    """Several messages on a command line are told apart by their places, a lone one needs none."""
    assert "#" not in run(NOOP.hex()).stdout
    result = run((NOOP + MUTATION).hex())
    assert "# argument 1, hex, 24 bytes" in result.stdout
    assert "# byte 24 of argument 1, hex, 65 bytes" in result.stdout


def test_places_in_a_file(tmp_path: Path) -> None:
    """The text for a file of messages says at which byte each of them begins."""
    path = tmp_path / "stream.bin"
    path.write_bytes(NOOP + MUTATION)
    result = run(path)
    assert "# byte 0 of stream.bin, 24 bytes" in result.stdout
    assert "# byte 24 of stream.bin, 65 bytes" in result.stdout


def test_port_without_a_packet_capture() -> None:
    """Whoever names a port for something else than a packet capture is told that it does nothing."""
    assert "note: hex is no packet capture; --port is ignored\n" in run("--port", "11210", NOOP.hex()).stderr
    assert "note: standard input is no packet capture" in run("--port", "11210", data=NOOP).stderr
    assert "ignored" not in run("--port", "11210", data=one_way(tcp(1, NOOP))).stderr


def test_only_shown_messages_count() -> None:
    """A problem in a message that is not shown does not change the exit code."""
    arguments = ["--dialect", "upr", MUTATION.hex(), NOOP.hex()]
    assert run(*arguments).exit_code == 2
    assert run("--only", "noop", *arguments).exit_code == 0


def test_terminal_is_safe() -> None:
    """Control characters of a note and of a key never reach the terminal raw."""
    note = json.dumps({"dir": "note", "text": "a\x1b[31mb\nc"})
    frame = json.dumps({"dir": "c2s", "hex": set_message(b"\x1b]0;x\x07", b"v").hex()})
    result = run(data=f'{{"scenario": "s"}}\n{note}\n{frame}\n'.encode())
    assert "\x1b" not in result.stdout
    assert "# a\\x1b[31mb\\nc" in result.stdout
    assert "# line 3 of standard input, main, client to server, " in result.stdout


def test_notes_are_left_out_of_json() -> None:
    """JSON holds messages and nothing else."""
    data = b'{"scenario": "s"}\n' + json.dumps({"dir": "c2s", "hex": NOOP.hex()}).encode()
    assert len(json_lines(run("--output", "json", data=data))) == 1


def test_only_and_limit() -> None:
    """Messages are chosen by name, in either spelling, and the output stops at the limit."""
    data = (NOOP + MUTATION) * 5
    result = run("--output", "json", "--only", "Mutation", "--limit", "3", data=data)
    assert [entry["message"] for entry in json_lines(result)] == ["mutation"] * 3
    assert result.stderr == "3 messages, 0 with problems\n"
    assert run("--only", "stream-request", data=data).stdout == ""


def test_wrong_name() -> None:
    """A message name that does not exist is refused with the nearest ones."""
    result = run("--only", "mutatoin", NOOP.hex())
    assert result.exit_code == 2
    assert "did you mean mutation" in result.stderr
    assert "names look like" in run("--only", "!", NOOP.hex()).stderr
    assert {"mutation", "tap_connect", "unknown", "unreadable"} <= message_names()


def test_faults_and_notes_go_to_stderr(tmp_path: Path) -> None:
    """What is wrong with a file is said on stderr, and the exit code tells."""
    path = tmp_path / "cut.pcap"
    path.write_bytes(one_way(tcp(1, NOOP), tcp(1, b"GET /", ports=(1, 2))) + b"\x00")
    result = run("--output", "json", path)
    assert result.exit_code == 2
    assert len(json_lines(result)) == 1
    assert "byte 194 of cut.pcap: the file ends inside a record header" in result.stderr
    assert "note: 1 connection passed over" in result.stderr


def test_empty_capture() -> None:
    """A capture without any connection says so."""
    result = run("--port", "99", data=pcapng([]))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "has no connection with TCP data from or to port 99" in result.stderr
    assert "has no connection with TCP data that" in run(data=pcapng([])).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([""], "holds no bytes"),
        (["nothing.pcap"], "neither an existing file nor hex"),
        (["--dialect", "dpc", "80"], "dpc"),
        (["--limit", "0", "80"], "--limit"),
    ],
)
def test_bad_arguments(arguments: list[str], words: str) -> None:
    """Wrong arguments end with 2 and a sentence on stderr."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_interrupt_and_broken_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C and a reader that leaves end the command with the codes that shells know."""
    for error, code in ((KeyboardInterrupt, EXIT_INTERRUPTED), (BrokenPipeError, EXIT_BROKEN_PIPE)):
        monkeypatch.setattr(explain_command, "read_inputs", _raiser(error))
        assert run(NOOP.hex()).exit_code == code


def _raiser(error: type[BaseException]):
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_progress_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file is read under a progress bar when somebody watches."""
    path = tmp_path / "messages"
    path.write_bytes(NOOP * 100)
    monkeypatch.setattr(explain_command, "PROGRESS_BYTES_MIN", 100)
    monkeypatch.setattr(explain_command, "_watched", lambda: True)
    assert run("--output", "json", path).exit_code == 0


def test_terminal_as_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever types hex is told how to end it."""
    monkeypatch.setattr(explain_command, "_typed", lambda: True)
    assert "Ctrl-D" in run(data=NOOP.hex().encode()).stderr


def test_version_and_help() -> None:
    """The version is printed; help shows every example."""
    runner = CliRunner()
    assert runner.invoke(app, ["--version"]).stdout == f"headrace {__version__}\n"
    assert "explain" in runner.invoke(app, ["--help"]).stdout
    help_text = run("--help").stdout
    assert all(example.splitlines()[0] in help_text for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_help_run(example: str, tmp_path: Path) -> None:
    """Every example in the help is a command that works."""
    if "xxd" in example and shutil.which("xxd") is None:
        pytest.skip("xxd is not installed")
    command = example.replace("headrace", f"'{sys.executable}' -m headrace", 1)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "1 message, 0 with problems\n")


def test_pipe_that_closes(tmp_path: Path) -> None:
    """`explain | head` ends in silence."""
    path = tmp_path / "messages"
    path.write_bytes(NOOP * 20_000)
    command = [sys.executable, "-m", "headrace", "explain", "--dialect", "dcp", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == EXIT_BROKEN_PIPE


@pytest.mark.skipif(os.name == "nt", reason="signals as POSIX has them")
def test_interrupt_from_outside() -> None:
    """A real SIGINT ends the program without a traceback."""
    command = [sys.executable, "-m", "headrace", "explain", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"{damaged}\n")
        process.stdin.flush()
        assert b"line 1 of standard input" in process.stderr.readline()  # now it waits for more
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
        assert process.wait() == EXIT_INTERRUPTED


CHUNKS = st.sampled_from(
    [
        NOOP,
        MUTATION,
        CONTRADICTORY,
        one_way(tcp(1, NOOP)),
        pcapng([]),
        b"0000  80 0a\n",
        b"*\n",
        b"00000010: 800a  ..\n",
        b'{"dir": "c2s", "hex": "80',
        b'"}\n',
        b"0| 80 |",
        b"\xef\xbb\xbf",
    ]
)


@given(st.lists(st.binary(max_size=60) | CHUNKS, max_size=6), st.sampled_from(["text", "json"]))
def test_any_bytes_end_cleanly(parts: list[bytes], output: str) -> None:
    """Any input ends with 0 or 2, never with a traceback; JSON is ASCII and parses."""
    result = run("--picture", "--output", output, data=b"".join(parts))
    assert result.exit_code in (0, 2), result.exception
    if output == "json":
        assert result.stdout.isascii()
        json_lines(result)
    else:
        assert all(char.isprintable() or char == "\n" for char in result.stdout)


@given(st.binary(max_size=400))
def test_any_packets_end_cleanly(noise: bytes) -> None:
    """Any bytes after the header of a capture file end with 0 or 2."""
    for head in (one_way(tcp(1, NOOP + MUTATION)), pcapng([])):
        assert run(data=head + noise).exit_code in (0, 2)


@given(st.text(max_size=60))
def test_any_argument_ends_cleanly(argument: str) -> None:
    """Any word on the command line ends with 0 or 2."""
    assert run("--", argument).exit_code in (0, 2)
