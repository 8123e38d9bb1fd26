import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.tail import EXAMPLES
from headrace.client import KvConnection, Positions
from headrace.testing.live import LiveNode
from tests.cli.tools import run, shell, start
from tests.client.servers import free_port

WAIT_S = 30.0


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node with a few items."""
    with LiveNode(vbuckets=4) as found:
        found.write({"user::1": {"name": "Ann"}, "user::2": {"name": "Bob"}, "beer::1": "ale"})
        found.delete("beer::1")
        yield found


def tail(node: LiveNode, *arguments: str | Path) -> Any:
    """Run the command."""
    return run("tail", "--connect", node.connection_string, *arguments)


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


def test_text_is_for_people(node: LiveNode):
    """A line tells when, what, where, the key and the value."""
    done = tail(node, "--from", "start", "--until-now")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line[16:].split(maxsplit=5) for line in done.stdout.splitlines()]
    assert sorted((each[0], each[5].split()[0]) for each in lines) == [
        ("deletion", "beer::1"),
        ("mutation", "user::1"),
        ("mutation", "user::2"),
    ]
    assert '{"name": "Ann"}' in done.stdout


def test_json_tells_everything(node: LiveNode):
    """Each line is an object with the names of the columns; what a message does not carry is left out."""
    done = tail(node, "--from", "start", "--until-now", "--output", "json")
    found = {each["key"]: each for each in objects(done.stdout)}
    assert json.loads(found["user::1"]["value"]) == {"name": "Ann"}
    assert {"event", "vbucket", "vbuuid", "seqno", "rev", "cas", "changed_at", "snapshot_end"} <= found[
        "user::1"
    ].keys()
    assert found["beer::1"]["event"] == "deletion"
    assert "value" not in found["beer::1"]


def test_octets_are_base64(node: LiveNode):
    """A key or value that is not UTF-8 is told apart; for people it is escaped."""
    node.items.set(b"\xff\n", b"\0\xfe")
    shown = objects(tail(node, "--from", "start", "--until-now", "--key", "\\n$", "--output", "json").stdout)
    assert (shown[0]["key_base64"], shown[0]["value_base64"]) == ("/wo=", "AP4=")
    text = tail(node, "--from", "start", "--until-now").stdout
    assert "\\xff\\x0a  \\x00\\xfe" in text


@pytest.mark.parametrize(
    ("filters", "keys"),
    [
        (["--key-prefix", "user::"], {"user::1", "user::2"}),
        (["--key", "1$"], {"user::1", "beer::1"}),
        (["--key-prefix", "user", "--key", "2"], {"user::2"}),
        (["--event", "deletion"], {"beer::1"}),
        (["--event", "deletion", "--event", "mutation", "--key", "1$"], {"user::1", "beer::1"}),
        (["--vbuckets", "0-3"], {"user::1", "user::2", "beer::1"}),
    ],
)
def test_filters(node: LiveNode, filters: list[str], keys: set[str]):
    """Only what fits all of them is shown."""
    done = tail(node, "--from", "start", "--until-now", "--output", "json", *filters)
    assert {each["key"] for each in objects(done.stdout)} == keys


def test_some_vbuckets(node: LiveNode):
    """Others are not even asked for."""
    every = objects(tail(node, "--from", "start", "--until-now", "--output", "json").stdout)
    wanted = every[0]["vbucket"]
    some = objects(tail(node, "--from", "start", "--until-now", "--output", "json", "--vbuckets", str(wanted)).stdout)
    assert [each["key"] for each in some] == [each["key"] for each in every if each["vbucket"] == wanted]


def test_a_saved_file_goes_on(node: LiveNode, tmp_path: Path):
    """What was shown is not shown again, wherever --limit stopped; the file is used by itself when it is there."""
    file = tmp_path / "positions.json"
    node.write(20)
    keys: list[str] = []
    for _ in range(30):
        start_at = [] if file.exists() else ["--from", "start"]
        done = tail(node, *start_at, "--until-now", "--save", file, "--limit", "3", "--output", "json")
        assert done.exit_code == 0, done.stderr
        found = [each["key"] for each in objects(done.stdout)]
        keys += found
        if not found:
            break
    assert sorted(keys) == sorted(["user::1", "user::2", "beer::1", *(f"key-{n}" for n in range(20))])
    assert Positions.load(file).bucket == "default"
    assert [each.name for each in tmp_path.iterdir()] == ["positions.json"]
    again = tail(node, "--from", file, "--until-now")
    assert (again.exit_code, again.stdout) == (0, "")


def test_what_cannot_be_printed_is_not_saved(node: LiveNode, tmp_path: Path):
    """A full disk under standard output loses nothing: the next run shows it."""
    file = tmp_path / "positions.json"
    done = shell(
        f"headrace tail --connect {node.connection_string} --from start --until-now --save {file} > /dev/full", tmp_path
    )
    assert done.returncode == 74
    assert "No space left" in done.stderr
    assert not file.exists()


def test_a_rollback_is_a_line(node: LiveNode, tmp_path: Path):
    """What is gone is told, for people and for programs."""
    node.write(30)
    file = tmp_path / "positions.json"
    assert tail(node, "--from", "start", "--until-now", "--save", file).exit_code == 0
    (gone, *_) = node.chaos.failover(0, lost=2)
    text = tail(node, "--from", file, "--until-now")
    assert f"rollback     vb {gone.vbucket}" in text.stdout
    shown = objects(tail(node, "--from", file, "--until-now", "--output", "json").stdout)
    (event,) = [each for each in shown if each["event"] == "rollback"]
    assert event["vbucket"] == 0
    assert event["seqno"] <= event["server_seqno"] <= gone.now
    assert event["read_seqno"] == gone.before
    assert event["because"]
    only = objects(tail(node, "--from", file, "--until-now", "--output", "json", "--event", "deletion").stdout)
    assert "rollback" not in {each["event"] for each in only}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--vbuckets", "a"], "--vbuckets is a list as in 0,7,100-199"),
        (["--vbuckets", "1-99999"], "--vbuckets is a list"),
        (["--vbuckets", "3-1"], "--vbuckets is a list"),
        (["--tls-ca", "ca.pem"], "--tls-ca needs a couchbases:// address"),
        (["--vbuckets", "77", "--until-now"], "there is no vbucket 77"),
        (["--key", "("], "--key is no regular expression"),
        (["--event", "party"], "--event is one of mutation"),
        (["--from", "/nowhere/at/all"], "positions cannot be read from /nowhere/at/all"),
        (["--from", "start", "--save", "/nowhere/at/all"], "positions cannot be saved to /nowhere/at/all"),
        (["--from", "start", "--save", "/dev/null"], "/dev/null: it is no regular file"),
        (["--password-env", "PW"], "a password needs --username"),
        (["--collection", "beer"], "a collection is scope.collection"),
    ],
)
def test_wrong_options(node: LiveNode, arguments: list[str], words: str):
    """The exit code is 2, and a sentence says what is wrong."""
    done = tail(node, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_file_that_is_none(node: LiveNode, tmp_path: Path):
    """What --save did not write is refused."""
    file = tmp_path / "positions.json"
    for content in ("{}", "[", '{"headrace_positions": 9}', '{"headrace_positions": 1}'):
        file.write_text(content)
        done = tail(node, "--from", file)
        assert done.exit_code == 2
        assert str(file) in done.stderr


def test_no_server(tmp_path: Path):
    """The exit code tells that nobody answers; no file tells the next run to begin at the start."""
    file = tmp_path / "positions.json"
    done = run("tail", "--connect", f"couchbase://127.0.0.1:{free_port()}", "--save", file)
    assert done.exit_code == 69
    assert "cannot connect" in done.stderr
    assert not file.exists()


def line_of(process: "subprocess.Popen[bytes]") -> bytes:
    """The next line."""
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_it_cleanly(node: LiveNode, tmp_path: Path, number: signal.Signals, code: int):
    """What was printed is saved, and nothing else; no word of an interpreter is said."""
    file = tmp_path / "positions.json"
    process = start("tail", "--connect", node.connection_string, "--from", "start", "--save", file, "--output", "json")
    try:
        keys = {json.loads(line_of(process))["key"] for _ in range(3)}
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (code, b"", b"")
    assert keys == {"user::1", "user::2", "beer::1"}
    assert sum(each.seqno for each in Positions.load(file).vbuckets.values()) == 4


def test_a_reader_that_leaves(node: LiveNode):
    """A broken pipe ends it without a word."""
    process = start("tail", "--connect", node.connection_string, "--from", "start")
    try:
        line_of(process)
        assert process.stdout is not None
        process.stdout.close()
        end = time.monotonic() + WAIT_S
        while process.poll() is None and time.monotonic() < end:
            node.write(5)
            time.sleep(0.05)
        assert process.returncode == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.communicate()


def test_it_follows(node: LiveNode):
    """A change is printed when it happens."""
    process = start("tail", "--connect", node.connection_string, "--from", "start", "--output", "json")
    try:
        for _ in range(3):
            line_of(process)
        with KvConnection(node.host, node.port) as items:
            items.set(b"live", b"1")
        assert json.loads(line_of(process))["key"] == "live"
    finally:
        process.kill()
        process.communicate()


def test_a_terminal_sees_the_rate(node: LiveNode):
    """Where standard error is a terminal, a line tells how many changes came."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headrace", "tail", "--connect", node.connection_string, "--from", "start"]
    watched = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    try:
        os.close(theirs)
        seen = b""
        end = time.monotonic() + WAIT_S
        while b"3 changes, " not in seen:
            assert time.monotonic() < end
            seen += os.read(ours, 1000)
    finally:
        watched.kill()
        watched.wait()
        os.close(ours)


def test_examples_run(tmp_path: Path):
    """The commands of the help run as they stand, where a node listens at the default address."""
    with LiveNode(vbuckets=4) as node:
        node.write({"user::1": {"name": "Ann"}})
        for example in EXAMPLES:
            script = example.replace("headrace tail", f"headrace tail --connect {node.connection_string}")
            done = shell(script, tmp_path)
            assert done.returncode == 0, done.stderr
