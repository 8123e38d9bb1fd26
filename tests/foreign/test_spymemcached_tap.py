"""spymemcached's TapClient, unmodified from Maven Central, reads our node; held against what was written."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import pytest

from headrace.node import NodeLimits
from headrace.testing import LiveNode
from tests.foreign.witness import tap_program
from tests.node.talk import Talk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("javac") is None, reason="a Java development kit is not installed"),
    pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is not installed"),
]

PATIENCE_S = 60.0
ITEMS = 2500
VBUCKETS = 8


@pytest.fixture(scope="module")
def program() -> list[str]:
    """The command that runs the client."""
    return tap_program()


@pytest.fixture
def node() -> Iterator[LiveNode]:
    """A node that asks for acks often."""
    with LiveNode(vbuckets=VBUCKETS, limits=NodeLimits(tap_ack_interval=100, tap_ack_window=3)) as running:
        yield running


class TapWitness:
    """A running client, and what it has said so far."""

    def __init__(self, program: Sequence[str], node: LiveNode, *arguments: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [*program, node.host, str(node.port), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()

    def wait_for(self, event: str, key: str = "") -> dict[str, Any]:
        """Wait until the client says something."""

        def found() -> dict[str, Any] | None:
            spelled = key.encode().hex()
            return next((one for one in self.events if one["event"] == event and one.get("key", "") == spelled), None)

        with self._news:
            assert self._news.wait_for(found, PATIENCE_S), f"{event} of {key!r} did not come: {self.events[-3:]}"
        told = found()
        assert told is not None
        return told

    def items(self) -> list[tuple[str, str, bytes | None, int]]:
        """What the client has told of items: what, key, value, flags."""
        return [
            (one["event"], bytes.fromhex(one["key"]).decode(), bytes.fromhex(one["value"]), one.get("flags", 0))
            for one in self.events
            if one["event"] in {"MUTATION", "DELETE"}
        ]


def fill(node: LiveNode) -> dict[str, tuple[bytes, int]]:
    """Write items with all kinds of flags and values; gives what there is then."""
    written = {}
    for number in range(ITEMS):
        value, flags = (bytes([number % 256]) * (number % 300), number * 0x01_00_10_01 & 0xFFFF_FFFF)
        node.items.set(f"key-{number}".encode(), value, flags=flags)
        written[f"key-{number}"] = value, flags
    return written


def connected(node: LiveNode) -> dict[str, str]:
    """What the node tells of the client, once it is connected."""
    end = time.monotonic() + PATIENCE_S
    prefix = "eq_tapq:witness:"
    while time.monotonic() < end:
        with Talk(node) as talk:
            told = talk.stats(b"tap")
        if f"{prefix}type" in told:
            return {name.removeprefix(prefix): value for name, value in told.items()}
        time.sleep(0.02)
    pytest.fail("the client did not connect")


def test_a_dump_has_every_item_and_ends(program: list[str], node: LiveNode):
    """Keys, values and flags are as they were written, deletions are told, and the client knows that it has all."""
    written = fill(node)
    node.delete("key-7", "key-1000")
    with TapWitness(program, node, "dump") as client:
        ended = client.wait_for("end")
        assert ended["by_itself"]
        assert ended["complete"]
        items = client.items()
    deleted = {key for what, key, _, _ in items if what == "DELETE"}
    assert deleted == {"key-7", "key-1000"}
    assert len(items) == ITEMS
    dumped = {key: (value, flags) for what, key, value, flags in items if what == "MUTATION"}
    assert dumped == {key: content for key, content in written.items() if key not in deleted}


def test_a_backfill_of_minus_one_shows_later_writes_alone(program: list[str], node: LiveNode):
    """Nothing that was there before comes, and acks with keys of 36 random bytes are taken."""
    node.write(50, prefix="before-")
    with TapWitness(program, node, "custom", "-1", "-", "BACKFILL", "SUPPORT_ACK") as client:
        connected(node)
        node.write({f"later-{number}": "x" for number in range(700)})
        node.delete("before-3")
        client.wait_for("DELETE", "before-3")
        end = time.monotonic() + PATIENCE_S
        while (told := connected(node))["ack_log_size"] != "0":
            assert time.monotonic() < end, told
        assert told["num_nack"] == "0"
        items = client.items()
        assert [key for what, key, _, _ in items if what == "DELETE"] == ["before-3"]
        assert {key for what, key, _, _ in items if what == "MUTATION"} == {f"later-{number}" for number in range(700)}
    assert not client.wait_for("end")["by_itself"]


def test_a_custom_connection_with_a_list_of_vbuckets(program: list[str], node: LiveNode):
    """Only items of the listed vbuckets come, all of them, and then the end."""
    fill(node)
    with TapWitness(program, node, "custom", "0", "1,5", "BACKFILL", "DUMP", "LIST_VBUCKETS", "SUPPORT_ACK") as client:
        assert client.wait_for("end")["complete"]
        assert {one["vbucket"] for one in client.events if "vbucket" in one} == {1, 5}
        there = {f"key-{number}" for number in range(ITEMS)}
        listed = {key for key in there if node.items.vbucket_of(key.encode()) in {1, 5}}
        assert {key for _, key, _, _ in client.items()} == listed


def test_keys_alone_and_checkpoints(program: list[str], node: LiveNode):
    """A client that asks for checkpoints reads them, and one that asks for keys gets no values."""
    node.write({f"key-{number}": "some value" for number in range(20)})
    flags = ("LIST_VBUCKETS", "SUPPORT_ACK", "CHECKPOINT", "KEYS_ONLY")
    with TapWitness(program, node, "custom", "-", "0,1,2,3,4,5,6,7", *flags) as client:
        connected(node)
        node.write({"last": "some value"})
        for key in [*(f"key-{number}" for number in range(20)), "last"]:
            assert client.wait_for("MUTATION", key)["value"] == ""
        assert len(client.items()) == 21
        client.wait_for("START_CHECKPOINT")
        assert {one["vbucket"] for one in client.events if one["event"] == "START_CHECKPOINT"} <= set(range(VBUCKETS))
