"""`--sync every-write`: while the writer does nothing, no change of any kind is acknowledged."""

from __future__ import annotations

import select
import signal
import time
from typing import TYPE_CHECKING

import pytest

from headrace.ids import Cas, VBucketId
from headrace.wire import encode
from headrace.wire.catalogue import (
    Add,
    Append,
    Decrement,
    Delete,
    DeleteWithMeta,
    Flush,
    Get,
    GetAndTouch,
    Increment,
    Prepend,
    Replace,
    Set,
    SetWithMeta,
    Touch,
)
from headrace.wire.codes import Status
from tests.crash.nodes import children_of, send_signal
from tests.crash.raw import Raw
from tests.processes import start_node

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.wire import Request

LATER = 4_000_000_000
CAS = Cas(time.time_ns())
CHANGES: dict[str, Request] = {
    "set": Set(key=b"set", value=b"<new>"),
    "set of JSON": Set(key=b"set of JSON", value=b"{}"),
    "add": Add(key=b"new", value=b"<new>"),
    "replace": Replace(key=b"replace", value=b"<new>"),
    "delete": Delete(key=b"delete"),
    "append": Append(key=b"append", value=b"<new>"),
    "prepend": Prepend(key=b"prepend", value=b"<new>"),
    "increment": Increment(key=b"increment", delta=1),
    "decrement": Decrement(key=b"decrement", delta=1),
    "touch": Touch(key=b"touch", expiry=LATER),
    "get and touch": GetAndTouch(key=b"get and touch", expiry=LATER),
    "set with meta": SetWithMeta(key=b"set with meta", value=b"<>", flags=0, expiry=0, rev_seqno=9, item_cas=CAS),
    "delete with meta": DeleteWithMeta(key=b"delete with meta", flags=0, expiry=0, rev_seqno=9, item_cas=CAS),
}


@pytest.mark.parametrize("kinds", ["items", "flush"])
def test_no_change_is_acknowledged_while_the_writer_is_away(tmp_path: Path, kinds: str) -> None:
    """Each kind of change, alone on its connection, waits for the disk; reads do not."""
    changes = CHANGES if kinds == "items" else {"flush": Flush()}
    node = start_node("--data", str(tmp_path / "data"), "--vbuckets", "16", "--sync", "every-write")
    writer = children_of(node.pid)[0]
    connections: dict[str, Raw] = {}
    try:
        with Raw(node.port) as raw:
            for name in CHANGES:
                raw.ask(Set(key=name.encode(), value=b"5"))
            raw.ask(Set(key=b"read", value=b"<read>", vbucket=VBucketId(1)))
            send_signal(writer, signal.SIGSTOP)
            for name, request in changes.items():
                assert raw.ask(Get(key=b"read", vbucket=VBucketId(1))).value == b"<read>"
                connections[name] = Raw(node.port)
                connections[name].socket.sendall(encode(request))
                time.sleep(0.02)
        sockets = {one.socket: name for name, one in connections.items()}
        ready, _, _ = select.select(list(sockets), [], [], 0.5)
        assert [sockets[one] for one in ready] == [], "acknowledged, and not on disk"
        send_signal(writer, signal.SIGCONT)
        for name, one in connections.items():
            assert one.receive().header.specific == Status.SUCCESS, name
        assert node.stop() == 0
    finally:
        send_signal(writer, signal.SIGCONT)
        for one in connections.values():
            one.socket.close()
        if node.running:
            node.kill()
        node.close()
