"""STAT: every group, as the catalogue and as foreign tools read it."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.ids import VBucketId
from headrace.node import Node
from headrace.node.stats import GROUPS
from headrace.node.users import Role, User, Users
from headrace.wire.catalogue import Add, Delete, Get, Noop, Set, Stat
from headrace.wire.codes import Status
from tests.node.talk import Talk, on_loop

LOOKED_FOR_BY_MEMCACHED_CLIENTS = (
    "pid", "uptime", "time", "version", "pointer_size", "curr_items", "total_items", "bytes", "curr_connections",
    "total_connections", "cmd_get", "cmd_set", "get_hits", "get_misses", "limit_maxbytes", "threads", "evictions",
)  # fmt: skip
EMPTY = {"items", "slabs", "sizes", "reset"}
OF_VBUCKETS = ("vbucket", "vbucket-details", "vbucket-seqno", "failovers")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Node]:
    """A node with a user who may read, and an admin."""
    named = {"r": Role.READ, "a": Role.ADMIN}
    users = [User.create(name, "secret", {role}, iterations=4096) for name, role in named.items()]
    Users(users).save(tmp_path / "users.json")
    with Node(vbuckets=2, users=tmp_path / "users.json") as running:
        yield running


@pytest.mark.parametrize("name", GROUPS)
def test_every_group_is_served(talk: Talk, name: str):
    """Each group ends with its empty entry, and each value is a text; only slabs and the reset have nothing to tell."""
    told = talk.stats(name.encode())
    assert (name in EMPTY) == (not told)
    assert all(value for value in told.values())


def test_what_memcached_clients_look_for(talk: Talk):
    """The general group has the names that memcached's clients read, and the numbers in them are numbers."""
    told = talk.stats()
    assert told.keys() >= set(LOOKED_FOR_BY_MEMCACHED_CLIENTS)
    for name in LOOKED_FOR_BY_MEMCACHED_CLIENTS:
        assert name == "version" or int(told[name]) >= 0
    assert told == talk.stats(b"all") | {
        name: told[name] for name in ("rusage_user", "rusage_system", "time", "uptime")
    }


def test_counts_follow_the_commands():
    """What clients do is counted, and a reset begins anew."""
    with Node(vbuckets=2) as node, Talk(node) as talk:
        talk.ask(Set(key=b"a", value=b"1"))
        talk.ask(Add(key=b"b", value=b"1"))
        talk.ask(Get(key=b"a"))
        talk.ask(Get(key=b"none"))
        talk.ask(Delete(key=b"b"))
        told = talk.stats()
        names = ("cmd_set", "cmd_get", "get_hits", "get_misses", "delete_hits", "curr_items", "total_items")
        assert [told[name] for name in names] == ["2", "2", "1", "1", "1", "1", "2"]
        assert int(told["bytes"]) > 0
        talk.stats(b"reset")
        assert [talk.stats()[name] for name in names] == ["0", "0", "0", "0", "0", "1", "0"]


def test_vbucket_seqnos():
    """The seqnos of a vbucket stand under the names that Couchbase's tools read, in memory and on disk."""
    with Node(vbuckets=4) as node, Talk(node) as talk:
        opened = next(iter(node.running.services.buckets))
        for number in range(3):
            talk.ask(Set(vbucket=VBucketId(2), key=b"%d" % number, value=b"x"))
        on_loop(node, opened.flusher.on_disk)
        told = talk.stats(b"vbucket-seqno 2")
        assert {name: told[f"vb_2:{name}"] for name in ("high_seqno", "abs_high_seqno", "purge_seqno")} == {
            "high_seqno": "3", "abs_high_seqno": "3", "purge_seqno": "0",
        }  # fmt: skip
        assert told["vb_2:last_persisted_seqno"] == "3"
        log = talk.stats(b"failovers 2")
        assert log == {"vb_2:num_entries": "1", "vb_2:0:id": told["vb_2:uuid"], "vb_2:0:seq": "0"}
        assert talk.stats(b"vbucket-details 2").items() >= told.items()
        assert talk.stats(b"vbucket") == {f"vb_{vb}": "active" for vb in range(4)}


@pytest.mark.parametrize("group", OF_VBUCKETS)
@pytest.mark.parametrize(
    ("argument", "status"),
    [("99", Status.NOT_MY_VBUCKET), ("65536", Status.NOT_MY_VBUCKET), ("x", Status.INVALID), ("-1", Status.INVALID),
     ("²", Status.INVALID), ("9" * 5000, Status.INVALID)],
    ids=["absent", "too large", "no number", "negative", "no digit", "long"],
)  # fmt: skip
def test_a_wrong_vbucket_is_refused(talk: Talk, group: str, argument: str, status: Status):
    """A vbucket that is not there, or is none, is refused, and the connection goes on."""
    assert talk.status(Stat(key=f"{group} {argument}".encode())) == status
    assert talk.status(Noop()) == 0


def test_an_unknown_group_is_refused(talk: Talk):
    """There is no such group is what the client hears."""
    assert talk.status(Stat(key=b"timings")) == Status.KEY_NOT_FOUND
    assert talk.status(Stat(key=b"\xff" * 200)) == Status.KEY_NOT_FOUND


def test_answers_stay_in_order(talk: Talk):
    """What is asked behind a group is answered behind it."""
    talk.send(Stat(key=b"settings"), Stat(key=b"uuid"), Noop())
    keys = [getattr(talk.receive(), "key", None) for _ in range(18)]
    assert keys[-4:] == [b"", b"uuid", b"", None]


def test_a_reset_takes_an_admin(guarded: Node):
    """Who may only read may not begin the counts anew."""
    with Talk(guarded) as talk:
        assert talk.status(Stat(key=b"")) == Status.AUTH_ERROR
        talk.log_in("r", "secret")
        assert talk.stats()["auth_errors"] == "0"
        assert talk.status(Stat(key=b"reset")) == Status.NO_ACCESS
        talk.log_in("a", "secret")
        assert talk.stats(b"reset") == {}


def test_trouble_is_told():
    """While the disk refuses writes, the general group says so and why."""
    with Node(vbuckets=2) as node, Talk(node) as talk:
        bucket = next(iter(node.running.services.buckets)).bucket
        on_loop(node, lambda: setattr(bucket, "trouble", "no space"))
        told = talk.stats()
        assert (told["ep_degraded_mode"], told["ep_disk_trouble"]) == ("1", "no space")
        on_loop(node, lambda: setattr(bucket, "trouble", None))
        assert talk.stats()["ep_degraded_mode"] == "0"


def test_settings_are_those_of_the_node(node: Node, talk: Talk):
    """The settings name the port and the bounds that the node was started with."""
    told = talk.stats(b"settings")
    assert told["tcpport"] == str(node.port)
    assert (told["auth_enabled_sasl"], told["num_vbuckets"], told["headrace_sync"]) == ("no", "16", "behind")


def _memcstat(node: Node, *arguments: str) -> list[str]:
    program = shutil.which("memcstat")
    if program is None:
        pytest.skip("memcstat is not installed (Debian: libmemcached-tools)")
    command = [program, f"--servers=127.0.0.1:{node.port}", "--binary", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    return done.stdout.split("\n")


def test_memcstat_reads_the_general_group(node: Node, talk: Talk):
    """The tool of libmemcached shows what a client of ours is told."""
    lines = dict(line.strip().split(": ", 1) for line in _memcstat(node)[1:] if line)
    assert lines.keys() == talk.stats().keys()
    assert lines["pointer_size"] == "64"


@pytest.mark.parametrize("group", ["settings", "vbucket-seqno", "failovers", "items", "slabs", "sizes"])
def test_memcstat_reads_a_group(node: Node, talk: Talk, group: str):
    """The tool of libmemcached reads a named group to its end."""
    told = talk.stats(group.encode())
    shown = [line.strip() for line in _memcstat(node, f"--args={group}")[1:] if line]
    assert shown == [f"{name}: {value}" for name, value in told.items()]


def test_python_binary_memcached_reads_stats(node: Node, talk: Talk):
    """A foreign client in Python reads the groups, too."""
    bmemcached = pytest.importorskip("bmemcached")
    address = f"127.0.0.1:{node.port}"
    client = bmemcached.Client((address,))
    try:
        assert client.stats("uuid") == {address: {"uuid": talk.stats(b"uuid")["uuid"].encode()}}
        assert client.stats("items") == {address: {}}
    finally:
        client.disconnect_all()
