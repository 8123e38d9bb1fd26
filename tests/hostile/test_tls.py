"""A port that speaks TLS, and clients that do not."""

from __future__ import annotations

import random
import ssl
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace.client import KvConnection
from headrace.wire import encode
from headrace.wire.catalogue import Noop
from tests.certificates import certificate
from tests.hostile.witness import RSS_BYTES_MAX, dial, read_to_end, say, serving, witnessed

if TYPE_CHECKING:
    from pathlib import Path

CLIENT_HELLO = bytes.fromhex("16030100a5010000a10303")


def test_plain_bytes_at_a_tls_port(tmp_path: Path) -> None:
    """Requests in the clear are never answered; noise and handshakes that stop hold up nobody who speaks TLS."""
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(cert))
    draw = random.Random(6)
    with serving("--tls-cert", str(cert), "--tls-key", str(key)) as node:

        def connect() -> KvConnection:
            return KvConnection(node.host, node.port, tls=context)

        with witnessed(node, connect=connect, rss_bytes_max=RSS_BYTES_MAX), ExitStack() as stack:
            for _ in range(100):
                stuck = stack.enter_context(dial(node.port))
                say(stuck, CLIENT_HELLO[: draw.randrange(len(CLIENT_HELLO))])
            for _ in range(100):
                with dial(node.port) as connection:
                    say(connection, encode(Noop()) * 3)
                    reply = read_to_end(connection)
                assert reply[:1] in {b"", b"\x15"}, "nothing, or the alert of TLS"
                with dial(node.port) as connection:
                    say(connection, draw.randbytes(500), is_all=draw.random() < 0.5)
            time.sleep(0.3)
