"""Servers to judge clients: Debian's memcached, `headrace node`, and one that answers what a test tells it to."""

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from headrace.errors import RemoteProtocolError
from headrace.wire import Frame, FrameReader, Message, Request, decode, encode
from headrace.wire.catalogue import Done, ErrorReply, GetClusterConfig, Hello, HelloReply, Text

HOST = "127.0.0.1"
_READY = re.compile(r"headrace node ready on 127\.0\.0\.1:(\d+)")


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def memcached(*options: str) -> Iterator[int]:
    """Run memcached; skip where there is none."""
    program = shutil.which("memcached")
    if program is None:
        pytest.skip("no memcached (Debian: apt-get install memcached)")
    port = free_port()
    as_user = ["-u", "root"] if os.getuid() == 0 else []
    process = subprocess.Popen([program, "-p", str(port), "-l", HOST, "-U", "0", *as_user, *options])
    try:
        _wait_for(port, process)
        yield port
    finally:
        _end(process)


@contextmanager
def headrace_node(*options: str | Path) -> Iterator[int]:
    """Run `headrace node`; skip where the program has no such command."""
    shown = subprocess.run([sys.executable, "-m", "headrace", "--help"], capture_output=True, text=True, check=True)
    if not re.search(r"^ +node\b", shown.stdout, re.MULTILINE):
        pytest.skip("no `headrace node` yet")
    command = [sys.executable, "-m", "headrace", "node", "--host", HOST, "--port", "0", "--vbuckets", "64"]
    process = subprocess.Popen([*command, *map(str, options)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = _READY.search(process.stdout.readline())
        assert ready, "the node did not say that it is ready"
        yield int(ready[1])
    finally:
        _end(process)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        assert process.poll() is None, "the server ended"
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError("the server does not listen")


def _end(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


Answer = bytes | list[Message] | Message | None
"""What a scripted server sends: bytes, messages, nothing (an empty list), or None to close."""


def opcode_of(request: Message) -> int:
    """The opcode of a request."""
    opcode: int = next(iter(request.spec.opcodes.values()))
    return opcode


def done(request: Message) -> Done:
    """The answer that it was done."""
    return Done(opcode=opcode_of(request), opaque=request.opaque)


def refused(request: Message, status: int, text: bytes = b"") -> ErrorReply:
    """The answer that it was not."""
    return ErrorReply(opcode=opcode_of(request), opaque=request.opaque, status=status, value=text)


MAP = json.dumps({"vBucketServerMap": {"serverList": ["$HOST:1"], "vBucketMap": [[0]] * 64}}).encode()
"""What a Couchbase server says of a bucket on itself alone."""


def couchbase(request: Request) -> Answer:
    """Open as a Couchbase server does that wants no password."""
    match request:
        case Hello():
            return HelloReply(opcode=opcode_of(request), opaque=request.opaque, features=request.features)
        case GetClusterConfig():
            return text(request, MAP)
        case _:
            return done(request)


def text(request: Message, value: bytes, status: int = 0) -> Text:
    """The answer of a text."""
    return Text(opcode=opcode_of(request), opaque=request.opaque, value=value, status=status)


def but(**answers: Callable[[Request], Answer]) -> Callable[[Request], Answer]:
    """A Couchbase server that answers some requests in another way."""
    return lambda request: answers.get(type(request).__name__, couchbase)(request)


class Scripted:
    """A server of one thread per connection that answers each request as `answer` says, and keeps them all."""

    def __init__(self, answer: Callable[[Request], Answer], tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[Request] = []
        self._answer = answer
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Take no more connections, and wait for those there are."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader()
        with suppress(OSError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
        with connection, suppress(OSError, RemoteProtocolError):
            while data := connection.recv(1 << 16):
                reader.receive(data)
                while isinstance(frame := reader.next_frame(), Frame):
                    request = decode(frame)
                    assert isinstance(request, Request)
                    self.requests.append(request)
                    answer = self._answer(request)
                    if answer is None:
                        return
                    connection.sendall(_bytes(answer))


def _bytes(answer: bytes | list[Message] | Message) -> bytes:
    if isinstance(answer, bytes):
        return answer
    return b"".join(map(encode, [answer] if isinstance(answer, Message) else answer))


@contextmanager
def scripted(answer: Callable[[Request], Answer], tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """Run a scripted server."""
    server = Scripted(answer, tls)
    try:
        yield server
    finally:
        server.close()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for loopback and its key; skip where there is no openssl."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl")
    cert, key = folder / "cert.pem", folder / "key.pem"
    what = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-days", "2"]
    form = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key)]
    subprocess.run([program, "req", "-x509", *form, *what, "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def tls_server(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """The server's side of TLS, and the certificate that a client is to trust."""
    cert, key = certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert
