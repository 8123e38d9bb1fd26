"""`headrace tail`, `replicate` and `move` with an old server, which is played; tests/replication has a real one."""

from __future__ import annotations

import json
import signal

import pytest

from headrace.cli.connect import EXIT_REFUSED, EXIT_UNREACHABLE, tap_connection
from headrace.cli.explain import EXIT_PROBLEMS
from headrace.testing import LiveNode
from headrace.wire.codes import TapConnectFlag, TapOpaqueCode
from tests.cli.tools import run, start
from tests.client.tap_server import TapServer, bytes_of, details, item, opaque, playing, whole

CLOSED = "tap://127.0.0.1:1"


def held() -> dict[str, str]:
    """One vbucket with items."""
    return details({0: 1})


def test_addresses():
    """tap:// and taps:// are read as connection strings, and others are none of TAP."""
    assert tap_connection("tap://a:1,b") == "couchbase://a:1,b"
    assert tap_connection("taps://a") == "couchbases://a"
    assert tap_connection("couchbase://a") is None
    assert tap_connection("a:11210") is None


@pytest.mark.parametrize("given", ["argument", "option"])
def test_tail_until_now(given: str):
    """What the server has is printed, with revisions for seqnos; the address stands alone or as --connect."""
    frames = whole(item(b"a", b"one", rev_seqno=3), item(b"\xff", b"\xfe"))
    with playing(TapServer(frames, held)) as played:
        address = f"tap://127.0.0.1:{played.port}"
        place = [address] if given == "argument" else ["--connect", address]
        shown = run("tail", *place, "--from", "start", "--until-now")
        told = run("tail", *place, "--from", "start", "--until-now", "--output", "json")
    assert shown.exit_code == 0, shown.stderr
    assert "mutation     vb 0    rev 3          a  one\n" in shown.stdout
    first, second = map(json.loads, told.stdout.splitlines())
    assert (first["key"], first["value"], first["rev"]) == ("a", "one", 3)
    assert not {"seqno", "vbuuid"} & first.keys()
    assert second["key_base64"] == "/w=="


def test_tail_filters():
    """The filters hold, and keys alone are asked for with --no-value."""
    frames = whole(item(b"user::1"), item(b"order::1"))
    with playing(TapServer(frames, held)) as played:
        address = f"tap://127.0.0.1:{played.port}"
        done = run(
            "tail", address, "--from", "start", "--until-now", "--key-prefix", "user", "--no-value", "--limit", "1"
        )
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["user::1"]
    assert (played.connects[0].flags or 0) & TapConnectFlag.KEYS_ONLY


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((CLOSED, "--save", "x.json"), "TAP has no positions"),
        ((CLOSED, "--from", "x.json"), "TAP has no positions"),
        ((CLOSED, "--collection", "*"), "TAP knows no collections"),
        ((CLOSED, "--xattrs"), "no extended attributes"),
        ((CLOSED, "--connect", "127.0.0.1:2"), "give the server once"),
        ((CLOSED, "--tls-ca", "ca.pem"), "--tls-ca needs"),
    ],
)
def test_tail_refuses(arguments: tuple[str, ...], told: str):
    """What TAP cannot do is refused in one sentence."""
    done = run("tail", *arguments)
    assert (done.exit_code, done.stdout) == (EXIT_PROBLEMS, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("start_at", "told"), [("start", "all comes again"), ("now", "changes may be missing here")])
def test_tail_says_that_it_was_interrupted(start_at: str, told: str):
    """A connection that breaks is told, with what follows from it."""
    frames = bytes_of(opaque(TapOpaqueCode.ENABLE_AUTO_NACK), item(b"a"))
    with playing(TapServer(frames, held)) as played:
        process = start("tail", f"tap://127.0.0.1:{played.port}", "--from", start_at)
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert line.startswith("headrace tail: ")
    assert told in line
    assert process.returncode == 130


def test_replicate_once():
    """An old server is dumped into a node; data on standard output, words on standard error."""
    frames = whole(*(item(b"key%d" % number) for number in range(30)))
    with playing(TapServer(frames, held)) as played, LiveNode(vbuckets=1) as node:
        ends = ("--from", f"tap://127.0.0.1:{played.port}", "--to", f"{node.host}:{node.port}")
        done = run("replicate", *ends, "--once")
        assert (done.exit_code, done.stdout) == (0, ""), done.stderr
        assert "carried 30 items" in done.stderr
        assert node.count() == 30
        told = run("replicate", *ends, "--once", "--output", "json")
        last = json.loads(told.stdout.splitlines()[-1])
        assert (last["event"], last["items"], last["caught_up"]) == ("ended", 30, True)


def test_replicate_forgets():
    """With --forget the name that was given is deregistered at the end."""
    frames = bytes_of(opaque(TapOpaqueCode.ENABLE_AUTO_NACK), item(b"a"))
    with playing(TapServer(frames, held, stays=True)) as played, LiveNode(vbuckets=1) as node:
        ends = ("--from", f"tap://127.0.0.1:{played.port}", "--to", f"{node.host}:{node.port}")
        process = start("replicate", *ends, "--name", "mine", "--forget")
        assert process.stderr is not None
        while not process.stderr.readline().startswith(b"joined"):
            pass
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0
    names = [each.name for each in played.requests if hasattr(each, "name") and not hasattr(each, "backfill_date")]
    assert names == [f"mine:127.0.0.1:{played.port}".encode()]


def test_replicate_refuses():
    """Options of TAP without TAP, a server that is not there, and a vbucket that the target lacks."""
    done = run("replicate", "--from", "127.0.0.1:1", "--to", "127.0.0.1:2", "--name", "x")
    assert (done.exit_code, "--from tap://" in done.stderr) == (EXIT_PROBLEMS, True)
    done = run("replicate", "--from", CLOSED, "--to", "127.0.0.1:2")
    assert done.exit_code == EXIT_UNREACHABLE
    with playing(TapServer([], lambda: details({5: 1}))) as played, LiveNode(vbuckets=1) as node:
        ends = ("--from", f"tap://127.0.0.1:{played.port}", "--to", f"{node.host}:{node.port}")
        done = run("replicate", *ends, "--once")
    assert done.exit_code == EXIT_REFUSED
    assert "has no vbucket 5" in done.stderr


def test_move_refuses():
    """A server that is not there, and the same server twice."""
    assert run("move", "--vbucket", "0", "--from", CLOSED, "--to", "127.0.0.1:2").exit_code == EXIT_UNREACHABLE
    with LiveNode(vbuckets=1) as node:
        here = f"{node.host}:{node.port}"
        done = run("move", "--vbucket", "0", "--from", f"tap://{here}", "--to", here)
    assert done.exit_code == EXIT_REFUSED
    assert "to itself" in done.stderr
