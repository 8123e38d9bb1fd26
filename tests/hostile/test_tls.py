"""A port that speaks TLS, and clients that do not."""

from __future__ import annotations

import random
import shutil
import ssl
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from headrace.client import KvConnection
from headrace.wire import encode
from headrace.wire.catalogue import Noop
from tests.hostile.witness import RSS_BYTES_MAX, dial, read_to_end, say, serving, witnessed

if TYPE_CHECKING:
    from pathlib import Path

CLIENT_HELLO = bytes.fromhex("16030100a5010000a10303")


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for this machine that signs itself, and its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs openssl to make a certificate")
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, *names, "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


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
