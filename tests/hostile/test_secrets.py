"""A password goes nowhere: not to logs at any level, not to statistics, not to the users file."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headrace.client import AuthFailedError, KvConnection
from headrace.node.stats import GROUPS
from headrace.scram import HASHES, ScramClient
from headrace.wire import decode, encode
from headrace.wire.catalogue import SaslAuth, SaslStep, Text
from headrace.wire.codes import Status
from tests.crash.raw import Raw
from tests.processes import start_node

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = "Zwetschgen-Kuchen-4711"
WRONG = "Marillen-Knoedel-0815"


def spellings(password: str) -> list[str]:
    """A password as it is, in hex and in base64, whatever stands before it."""
    plain = password.encode()
    encoded = [base64.b64encode(b"." * shift + plain)[4:-4].decode() for shift in range(3)]
    challenge = base64.b64encode(b"\0ann\0" + plain).decode()
    return [password, plain.hex(), base64.b64encode(plain).decode(), challenge, *encoded]


def scram(raw: Raw, mechanism: str, password: str) -> int:
    """Log in by SCRAM; give the status."""
    client = ScramClient(mechanism, username="ann", password=password, nonce=os.urandom(12).hex().encode())
    first = decode(raw.send(SaslAuth(mechanism=mechanism.encode(), challenge=client.first())))
    assert isinstance(first, Text)
    assert first.status == Status.AUTH_CONTINUE
    return raw.send(SaslStep(mechanism=mechanism.encode(), challenge=client.final(first.value))).header.specific


def plain(raw: Raw, password: str) -> int:
    """Log in by PLAIN; give the status."""
    return raw.send(SaslAuth(mechanism=b"PLAIN", challenge=b"\0ann\0" + password.encode())).header.specific


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_password_is_told_to_anyone(tmp_path: Path, form: str) -> None:
    """Right and wrong passwords, by every mechanism, are nowhere in what the node writes or tells."""
    users = tmp_path / "users.json"
    command = [sys.executable, "-m", "headrace", "user", "add", "ann", "--users", str(users), "--role", "admin"]
    environment = {**os.environ, "ANN": RIGHT}
    added = subprocess.run(
        [*command, "--password-env", "ANN"], env=environment, check=True, capture_output=True, text=True
    )
    told = [added.stdout, added.stderr, users.read_text()]
    arguments = ["--users", str(users), "--log-format", form, "--log-level", "debug", "--data", str(tmp_path / "data")]
    node = start_node("--vbuckets", "1", *arguments)
    try:
        with Raw(node.port) as raw:
            assert plain(raw, WRONG) == Status.AUTH_ERROR
            raw.socket.sendall(encode(SaslAuth(mechanism=b"PLAIN", challenge=RIGHT.encode())))  # no zero bytes
            assert raw.receive().header.specific == Status.AUTH_ERROR
            raw.socket.sendall(encode(SaslAuth(mechanism=RIGHT.encode(), challenge=b"")))  # a slip of the pen
            assert raw.receive().header.specific == Status.AUTH_ERROR
            for mechanism in HASHES:
                assert scram(raw, mechanism, WRONG) == Status.AUTH_ERROR
            for mechanism in HASHES:
                assert scram(raw, mechanism, RIGHT) == Status.SUCCESS
            assert plain(raw, RIGHT) == Status.SUCCESS
            told += [repr(raw.stats(group.encode())) for group in GROUPS if group != "reset"]
        with pytest.raises(AuthFailedError) as refused:
            KvConnection(node.host, node.port, username="ann", password=WRONG)
        told += [str(refused.value), repr(refused.value)]
        with KvConnection(node.host, node.port, username="ann", password=RIGHT) as client:
            told.append(repr(client))
        assert node.stop() == 0
        assert "a login was refused" in node.said
        told.append(node.said)
        told += [path.read_bytes().decode("latin-1") for path in (tmp_path / "data").rglob("*") if path.is_file()]
    finally:
        if node.running:
            node.kill()
        node.close()
    for password in (RIGHT, WRONG):
        for spelling in spellings(password):
            assert not [text for text in told if spelling in text], spelling
