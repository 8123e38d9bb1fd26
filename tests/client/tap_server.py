"""An old server, played: it dumps frames that real servers sent, to a client that has to acknowledge as they asked.

It knows what 3.0.3 and 4.1.2 know: hello without features, statistics of vbuckets, TAP_CONNECT. It sends a message that
asks for an ack only when all earlier ones were acknowledged, as those do with their opaque messages.
"""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.client import ChangeOptions
from headrace.client.tap_dump import TapDump, TapPart
from headrace.ids import Cas, Opaque, VBucketId
from headrace.wire import Dialect, Frame, FrameReader, Header, Message, Request, Response, decode, encode
from headrace.wire.catalogue import (
    DeregisterTapClient,
    Done,
    GetClusterConfig,
    Hello,
    HelloReply,
    Noop,
    SaslAuth,
    SaslListMechs,
    Stat,
    StatEntry,
    TapConnect,
    TapDelete,
    TapMutation,
    TapOpaque,
    TapRequest,
)
from headrace.wire.codes import Status, TapFlag, TapOpaqueCode
from tests.client.servers import HOST, opcode_of, refused, text

CAPTURES = Path(__file__).parent.parent / "captures"
CLOCK = 1_468_000_000_000_000_000
"""A CAS that is a time."""

RELEASES = ("3.0.3", "4.1.2")
DUMPS = (("08c_tap_dump", ""), ("08e_tap_list_vbuckets", ""), ("08e_tap_list_vbuckets", "empty"), ("08f_tap_ack", ""))
"""The dumps that real servers brought to an end, by scenario and connection."""


def captured(release: str, scenario: str, connection: str = "") -> list[bytes]:
    """Every frame that the server sent on one connection of a capture."""
    lines = (CAPTURES / release / f"{scenario}.jsonl").read_text().splitlines()[1:]
    entries = [json.loads(line) for line in lines]
    return [
        bytes.fromhex(entry["hex"])
        for entry in entries
        if entry["dir"] == "s2c" and entry.get("conn", "") == connection
    ]


def read(frame: bytes) -> Message:
    """A frame as a message of TAP."""
    return decode(Frame(Header.parse(frame), frame[24:]), Dialect.TAP)


def items_of(frames: Sequence[bytes]) -> dict[int, int]:
    """How many items each vbucket of a dump has."""
    found: dict[int, int] = {}
    for message in map(read, frames):
        if isinstance(message, TapMutation | TapDelete):
            found[message.vbucket] = found.get(message.vbucket, 0) + isinstance(message, TapMutation)
    return found


def details(items: Mapping[int, int], state: str = "active", **more: int) -> dict[str, str]:
    """The statistics of vbuckets that have so many items and nothing to write."""
    found: dict[str, str] = {}
    for vbucket, count in items.items():
        numbers = {"num_items": count, "queue_size": 0, "queue_fill": count, "queue_drain": count, **more}
        found[f"vb_{vbucket}"] = state
        found |= {f"vb_{vbucket}:{name}": str(number) for name, number in numbers.items()}
    return found


Rows = list[dict[str, Any]]


@dataclass
class TapServer:
    """What is played, and what was heard."""

    frames: Sequence[bytes] = ()
    """What a dump brings; with a list of vbuckets, only what is of those."""
    statistics: Callable[[], Mapping[str, str]] | None = None
    """What `stats vbucket-details` tells, each time it is asked; None for a server that does not know it."""
    config: bytes | None = None
    features: Sequence[int] = ()
    mechanisms: bytes | None = None
    refusal: int | None = None
    """The status that TAP_CONNECT is refused with."""
    cut_bytes: int | None = None
    """After so many bytes of a dump the connection breaks."""
    stays: bool = False
    """Whether it goes on after what it has to send, as a stream that is no dump does."""
    tls: ssl.SSLContext | None = None
    requests: list[Message] = field(default_factory=list)
    acks: list[Message] = field(default_factory=list)
    port: int = 0
    trouble: list[BaseException] = field(default_factory=list)

    @property
    def connects(self) -> list[TapConnect]:
        """The dumps that were asked for."""
        return [each for each in self.requests if isinstance(each, TapConnect)]

    def serve(self, connection: socket.socket) -> None:
        """Answer until the client goes, or the dump is done."""
        reader = FrameReader()
        try:
            with connection, suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.tls is not None:
                    connection = self.tls.wrap_socket(connection, server_side=True)
                with connection:
                    while (message := self._next(connection, reader)) is not None:
                        self.requests.append(message)
                        if isinstance(message, TapConnect) and self.refusal is None:
                            self._dump(connection, reader, message)
                            return
                        assert isinstance(message, Request)
                        connection.sendall(b"".join(map(encode, self._answer(message))))
        except BaseException as error:  # noqa: BLE001 - the test that ends the server looks at it
            self.trouble.append(error)

    def _next(self, connection: socket.socket, reader: FrameReader) -> Message | None:
        while not isinstance(frame := reader.next_frame(), Frame):
            data = connection.recv(1 << 16)
            if not data:
                return None
            reader.receive(data)
        return decode(frame, Dialect.TAP)

    def _answer(self, request: Request) -> list[Message]:  # noqa: PLR0911 - an answer for each command
        match request:
            case Hello():
                granted = tuple(each for each in request.features if each in self.features)
                return [HelloReply(opcode=opcode_of(request), opaque=request.opaque, features=granted)]
            case GetClusterConfig() if self.config is not None:
                return [text(request, self.config)]
            case SaslListMechs() if self.mechanisms is not None:
                return [text(request, self.mechanisms)]
            case SaslAuth():
                return [text(request, b"Authenticated")]
            case Stat(key=b"vbucket-details") if self.statistics is not None:
                told = {**self.statistics(), "": ""}
                return [
                    StatEntry(opcode=opcode_of(request), opaque=request.opaque, key=name.encode(), value=value.encode())
                    for name, value in told.items()
                ]
            case DeregisterTapClient():
                return [Done(opcode=opcode_of(request), opaque=request.opaque)]
            case Stat():
                return [refused(request, Status.KEY_NOT_FOUND, b"Not found")]
            case TapConnect():
                assert self.refusal is not None
                return [refused(request, self.refusal, b"No")]
            case _:
                return [refused(request, Status.UNKNOWN_COMMAND, b"Unknown command")]

    def _dump(self, connection: socket.socket, reader: FrameReader, asked: TapConnect) -> None:
        sent = 0
        for frame in self.frames:
            message = read(frame)
            if asked.vbuckets is not None and isinstance(message, TapRequest) and message.vbucket not in asked.vbuckets:
                continue
            if self.cut_bytes is not None and sent + len(frame) > self.cut_bytes:
                connection.sendall(frame[: self.cut_bytes - sent])
                return
            connection.sendall(frame)
            sent += len(frame)
            if isinstance(message, Noop) or (isinstance(message, TapRequest) and message.tap_flags & TapFlag.ACK):
                ack = self._next(connection, reader)
                if ack is None:
                    return
                assert isinstance(ack, Response), ack
                self.acks.append(ack)
        while self.stays and (more := self._next(connection, reader)) is not None:
            assert isinstance(more, Response), more
            self.acks.append(more)


def options(server: TapServer, **more: Any) -> ChangeOptions:
    """How to reach a server."""
    scheme = "couchbase" if server.tls is None else "couchbases"
    return ChangeOptions(connection=f"{scheme}://{HOST}:{server.port}", **{"timeout_s": 5.0, **more})


def dump(server: TapServer, vbuckets: tuple[int, ...] | None = None, **more: Any) -> Rows:
    """Every row of a dump of one part."""
    how = options(server, **more)
    with TapDump(how, TapPart(how.seeds[0], vbuckets)) as found:
        return [row for batch in found for row in batch.to_pylist()]


def bytes_of(*sent: Message) -> list[bytes]:
    """Messages as frames of TAP."""
    return [encode(message, Dialect.TAP) for message in sent]


def opaque(code: TapOpaqueCode, vbucket: int = 0, number: int = 0) -> TapOpaque:
    """A control message that wants an ack."""
    return TapOpaque(code=code, vbucket=VBucketId(vbucket), opaque=Opaque(number), tap_flags=TapFlag.ACK)


def item(key: bytes, value: bytes = b"1", **more: Any) -> TapMutation:
    """An item."""
    told = {"rev_seqno": 1, "nru": 2, "tap_flags": TapFlag.NETWORK_BYTE_ORDER, "cas": Cas(CLOCK)}
    return TapMutation(key=key, value=value, **{**told, **more})


def whole(*sent: Message) -> list[bytes]:
    """A dump of vbucket 0 that is whole."""
    first, last = opaque(TapOpaqueCode.INITIAL_VBUCKET_STREAM), opaque(TapOpaqueCode.CLOSE_BACKFILL)
    return bytes_of(opaque(TapOpaqueCode.ENABLE_AUTO_NACK), first, *sent, last)


@contextmanager
def playing(server: TapServer) -> Iterator[TapServer]:
    """Serve on a port of loopback, a thread for each connection; what goes wrong in one is raised at the end."""
    listener = socket.create_server((HOST, 0))
    server.port = listener.getsockname()[1]
    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=server.serve, args=(connection,), daemon=True))
                threads[-1].start()

    threads.append(threading.Thread(target=accept, daemon=True))
    threads[0].start()
    try:
        yield server
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in threads:
            thread.join(10)
    for error in server.trouble:
        raise error
