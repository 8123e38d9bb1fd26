"""A right consumer has what the node has, whatever trouble is made, once there is calm."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client import KvConnection, NotFoundError, NotMyVBucketError
from headrace.client.changes import Change
from headrace.client.events import RolledBack
from headrace.client.options import ChangeOptions
from headrace.client.reader import ChangeReader
from tests.chaos.seen import streamed

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.testing import LiveNode

VBUCKETS = 4
WAIT_S = 60


@pytest.fixture
def headrace_node_options() -> dict[str, Any]:
    """Few vbuckets, so that trouble meets all of them."""
    return {"vbuckets": VBUCKETS}


class Copy(threading.Thread):
    """Reads all changes, and undoes them when it is told to; what it has is what it read and did not undo."""

    def __init__(self, node: LiveNode) -> None:
        super().__init__(daemon=True)
        self.rollbacks = 0
        self.failure: BaseException | None = None
        self.has_begun = threading.Event()
        self._history: dict[int, list[tuple[int, bytes, bytes | None]]] = {vb: [] for vb in range(VBUCKETS)}
        self._options = ChangeOptions(
            connection=node.connection_string, name="copy", noop_interval_s=1, idle_s=1, timeout_s=3
        )
        self._enough = threading.Event()

    def run(self) -> None:
        """Read until told to stop."""
        try:
            with ChangeReader(self._options) as changes:
                while not self._enough.is_set():
                    self._take(changes.next_change(0.1))
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.failure = error

    def _take(self, event: object) -> None:
        if event is not None:
            self.has_begun.set()
        if isinstance(event, RolledBack):
            self.rollbacks += 1
            history = self._history[event.vbucket]
            self._history[event.vbucket] = [change for change in history if change[0] <= event.whole]
        elif isinstance(event, Change):
            key = event.key.encode() if isinstance(event.key, str) else event.key
            assert key is not None
            history = self._history[event.vbucket]
            assert not history or history[-1][0] < event.seqno, "a seqno came twice"
            history.append((event.seqno, key, event.value if event.event == "mutation" else None))

    def items(self, vbucket: int) -> dict[bytes, bytes]:
        """The live items."""
        found: dict[bytes, bytes] = {}
        for _, key, value in self._history[vbucket]:
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        return found

    def end(self) -> None:
        """Stop reading."""
        self._enough.set()
        self.join(WAIT_S)
        assert not self.is_alive()


def write_on(node: LiveNode, until: threading.Event, seed: int) -> None:
    """Set and delete items for as long as the trouble lasts."""
    draw = random.Random(seed)
    with KvConnection(node.host, node.port) as connection:
        while not until.is_set():
            key = f"k{draw.randrange(60)}".encode()
            try:
                if draw.random() < 0.8:
                    connection.set(key, f"{draw.random()}".encode())
                else:
                    connection.delete(key)
            except (NotFoundError, NotMyVBucketError):
                continue
            time.sleep(0.001)


def trouble(node: LiveNode, draw: random.Random) -> None:
    """Make one trouble, whichever; what is refused, since no consumer is there just now, is none."""
    chaos, vbucket = node.chaos, draw.randrange(VBUCKETS)
    high = node.high_seqnos()[vbucket]
    troubles: list[Callable[[], object]] = [
        lambda: chaos.failover(vbucket, lost=draw.randrange(5)),
        lambda: chaos.rollback(vbucket, to=max(0, high - draw.randrange(30))),
        chaos.cut,
        lambda: chaos.cut(after_messages=draw.randrange(20), mid_message=True),
        lambda: chaos.cut(after_bytes=draw.randrange(1, 3000)),
        lambda: chaos.end(vbucket, reason=draw.choice(["state_changed", "too_slow", "disconnected"])),
        lambda: chaos.refuse(draw.choice(["temporary_failure", "not_my_vbucket", "busy"]), count=2),
        lambda: chaos.slow(draw.choice([2_000, 100_000])),
        chaos.pause,
        chaos.freeze,
        chaos.thaw,
        chaos.calm,
    ]
    with contextlib.suppress(NotFoundError):
        draw.choice(troubles)()


@pytest.mark.parametrize("seed", range(3))
def test_a_right_consumer_has_what_the_node_has(node: LiveNode, seed: int):
    """Writes go on, trouble comes and goes; when there is calm, every vbucket's copy is what the vbucket holds."""
    draw = random.Random(seed)
    copy, done = Copy(node), threading.Event()
    writer = threading.Thread(target=write_on, args=(node, done, seed), daemon=True)
    copy.start()
    writer.start()
    assert copy.has_begun.wait(WAIT_S), copy.failure
    try:
        for _ in range(25):
            trouble(node, draw)
            time.sleep(draw.uniform(0, 0.15))
            assert copy.failure is None, copy.failure
        node.chaos.calm()
    finally:
        done.set()
        writer.join(WAIT_S)
    high = node.high_seqnos()
    wanted = {vbucket: streamed(node, vbucket, high[vbucket]) for vbucket in range(VBUCKETS)}
    end = time.monotonic() + WAIT_S
    while {vbucket: copy.items(vbucket) for vbucket in range(VBUCKETS)} != wanted:
        assert time.monotonic() < end, (copy.failure, copy.rollbacks)
        assert copy.failure is None, copy.failure
        time.sleep(0.05)
    copy.end()
    assert sum(map(len, wanted.values())) == node.count() > 0
