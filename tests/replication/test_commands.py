"""`headrace replicate`, `headrace move` and `headrace failover` as a user runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cli.connect import EXIT_REFUSED, EXIT_UNREACHABLE, CommandError
from headrace.cli.explain import EXIT_PROBLEMS
from headrace.cli.output import EXIT_OUTPUT
from headrace.cli.pair import EXIT_NOT_DONE, read_vbuckets
from headrace.history import State
from headrace.node import Node
from headrace.node.users import ITERATIONS_MIN, Role, User, Users
from headrace.pipelines import move as moving
from headrace.pipelines.servers import Server, Vbuckets
from tests.certificates import certificate
from tests.cli.tools import run
from tests.replication.nodes import dump, eventually, is_equal, server_at

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOSED = "127.0.0.1:1"


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """Two nodes, the first with some items."""
    with Node(vbuckets=2) as one, Node(vbuckets=2) as two:
        source, target = server_at(one.host, one.port), server_at(two.host, two.port)
        with source.connect() as node:
            for number in range(40):
                node.set(b"item%d" % number, b"%d" % number)
        yield source, target


def ends(pair: tuple[Server, Server]) -> tuple[str, ...]:
    """The options that name the servers."""
    return ("--from", str(pair[0]), "--to", f"couchbase://{pair[1]}")


def lines(text: str) -> list[dict[str, Any]]:
    """JSON, one object a line."""
    return [json.loads(line) for line in text.splitlines()]


def test_replicate_once(pair: tuple[Server, Server]):
    """It copies, says so in words on standard error, and leaves standard output to data."""
    done = run("replicate", *ends(pair), "--once")
    assert (done.exit_code, done.stdout) == (0, ""), done.stderr
    assert "caught up" in done.stderr
    assert "carried 40 items" in done.stderr
    assert dump(pair[0], 1) == dump(pair[1], 1)


def test_replicate_json(pair: tuple[Server, Server]):
    """With --output json each event is an object, and the last one sums up."""
    done = run("replicate", *ends(pair), "--once", "--vbuckets", "1", "--output", "json")
    assert done.exit_code == 0, done.stderr
    *events, last = lines(done.stdout)
    assert [event["event"] for event in events] == ["prepared", "joined", "caught up"]
    assert (last["event"], last["vbuckets"], last["caught_up"], last["dropped"]) == ("ended", 1, True, {})
    assert last["items"] == len(dump(pair[0], 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_replicate_until_stopped(pair: tuple[Server, Server], number: signal.Signals):
    """It goes on until a signal comes, and that is a clean end."""
    words = [sys.executable, "-m", "headrace", "replicate", *ends(pair)]
    job = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert job.stderr is not None
        assert job.stderr.readline().startswith("prepared")
        with pair[0].connect() as node:
            node.set(b"later", b"x")
        eventually(lambda: is_equal(*pair, range(2)), "the copy catches up")
        job.send_signal(number)
        said = job.communicate(timeout=30)[1]
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 0, said
    assert "carried 41 items" in said


def test_replicate_refused(pair: tuple[Server, Server]):
    """A target that would lose changes is left alone."""
    with pair[1].connect() as node:
        node.set(b"mine", b"x")
    done = run("replicate", *ends(pair), "--once")
    assert done.exit_code == EXIT_REFUSED
    assert "--force" in done.stderr
    assert run("replicate", *ends(pair), "--once", "--force").exit_code == 0


def test_move_and_back(pair: tuple[Server, Server]):
    """It tells each step; a second run finds nothing to do."""
    done = run("move", "--vbucket", "1", *ends(pair))
    assert (done.exit_code, done.stdout) == (0, ""), done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines()[:5]] == [
        "prepared",
        "copying",
        "pending",
        "active",
        "moved",
    ]
    again = run("move", "--vbucket", "1", *ends(pair), "--output", "json")
    told = lines(again.stdout)[-1]
    assert (again.exit_code, told["already"], told["owner"]) == (0, True, str(pair[1]))
    back = run("move", "--vbucket", "1", *ends((pair[1], pair[0])), "--output", "json")
    told = lines(back.stdout)[-1]
    assert (back.exit_code, told["already"], told["attempts"]) == (0, False, 1)
    assert told["seqno"] == len(dump(pair[0], 1))


def test_move_refused(pair: tuple[Server, Server]):
    """What would lose changes is refused."""
    with pair[1].connect() as node:
        for number in range(10):
            node.set(b"mine%d" % number, b"x")
    done = run("move", "--vbucket", "1", *ends(pair))
    assert (done.exit_code, "changes of its own" in done.stderr) == (EXIT_REFUSED, True)


def test_move_not_done(pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch):
    """What did not succeed and left the owner as it was has an exit code of its own."""
    monkeypatch.setattr(moving, "ATTEMPTS_MAX", 0)
    done = run("move", "--vbucket", "1", *ends(pair))
    assert done.exit_code == EXIT_NOT_DONE
    assert f"{pair[0]} owns it" in done.stderr


@pytest.mark.parametrize("command", [("replicate", "--once"), ("move", "--vbucket", "0")])
def test_nobody_there(pair: tuple[Server, Server], command: tuple[str, ...]):
    """A server that does not answer is told as such."""
    for source, target in ((CLOSED, str(pair[0])), (str(pair[0]), CLOSED)):
        done = run(*command, "--from", source, "--to", target)
        assert done.exit_code == EXIT_UNREACHABLE
        assert CLOSED in done.stderr


def test_failover(pair: tuple[Server, Server]):
    """Replicas become owners on new branches; what is owned already is refused, and the others are done."""
    assert run("replicate", *ends(pair), "--once").exit_code == 0
    server = str(pair[1])
    done = run("failover", "--connect", server, "--vbucket", "1", "--output", "json")
    (told,) = lines(done.stdout)
    assert (done.exit_code, told["was"], told["dropped_seqnos"]) == (0, "replica", 0)
    assert told["seqno"] == len(dump(pair[0], 1))
    with Vbuckets(pair[1]) as vbuckets:
        assert vbuckets.stats("failovers 1")["vb_1:0:id"] == str(told["vbuuid"])
    both = run("failover", "--connect", server, "--vbucket", "0-1")
    assert both.exit_code == EXIT_REFUSED
    assert "owns it already" in both.stderr
    assert "vbucket 0 is active at" in both.stderr
    with Vbuckets(pair[1]) as vbuckets:
        assert vbuckets.state(0) is State.ACTIVE


@pytest.mark.parametrize("command", ["failover", "move"])
def test_output_that_breaks_stops_no_work(pair: tuple[Server, Server], command: str):
    """A full disk behind standard output is told at the end, when the vbuckets have their owner."""
    if command == "failover":
        assert run("replicate", *ends(pair), "--once").exit_code == 0
        arguments = ["failover", "--connect", str(pair[1]), "--vbucket", "0-1"]
    else:
        arguments = ["move", *ends(pair), "--vbucket", "1"]
    with Path("/dev/full").open("wb") as full:
        command_line = [sys.executable, "-m", "headrace", *arguments, "--output", "json"]
        done = subprocess.run(command_line, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == EXIT_OUTPUT, done.stderr
    with Vbuckets(pair[1]) as vbuckets:
        assert vbuckets.state(1) is State.ACTIVE


def test_failover_of_nothing(pair: tuple[Server, Server]):
    """A list that is none, and a server that is none."""
    assert run("failover", "--connect", str(pair[0]), "--vbucket", "x").exit_code == EXIT_PROBLEMS
    assert run("failover", "--connect", CLOSED, "--vbucket", "1").exit_code == EXIT_UNREACHABLE


@pytest.mark.parametrize("text", ["", "a", "1-", "5-3", "1024", "0x1", "-1"])
def test_no_list_of_vbuckets(text: str):
    """What is no list of vbuckets is told as such."""
    with pytest.raises(CommandError):
        read_vbuckets(text)


def test_users_and_tls(tmp_path: Path):
    """Options hold for both servers, but where the second has its own."""
    cert, key = certificate(tmp_path)
    users, secret, other = tmp_path / "users.json", tmp_path / "secret", tmp_path / "other"
    secret.write_text("of ann\n")
    other.write_text("of bob\n")
    Users(
        [
            User.create("ann", "of ann", [Role.ADMIN], iterations=ITERATIONS_MIN),
            User.create("bob", "of bob", [Role.ADMIN], iterations=ITERATIONS_MIN),
        ]
    ).save(users)
    with Node(vbuckets=2, users=users, tls_cert=cert, tls_key=key) as one, Node(vbuckets=2, users=users) as two:
        to = ("--from", f"couchbases://{one.host}:{one.port}", "--to", f"{two.host}:{two.port}", "--tls-ca", str(cert))
        ann = ("--username", "ann", "--password-file", str(secret))
        bob = ("--to-username", "bob", "--to-password-file", str(other))
        stored = run("set", "--connect", to[1], "--tls-ca", str(cert), *ann, "item1", "x")
        assert stored.exit_code == 0, stored.stderr
        for options in (ann, (*ann, *bob)):
            done = run("replicate", *to, *options, "--once")
            assert done.exit_code == 0, done.stderr
        moved = run("move", "--vbucket", "1", *to, *ann)
        assert moved.exit_code == 0, moved.stderr
        wrong = run("move", "--vbucket", "0", *to, *ann, "--to-username", "bob")
        assert wrong.exit_code == EXIT_REFUSED
        assert "of ann" not in wrong.stderr


@pytest.mark.parametrize("command", ["replicate", "move", "failover"])
def test_help(command: str):
    """The help has examples, exit codes, and no option for a password."""
    shown = run(command, "--help").stdout
    assert "Examples:" in shown
    assert "exit code" in shown
    assert "--password " not in shown
