"""From the arguments of a command line to the events of `events`: what kind of input is it, and who reads it.

An argument is a path if a file of that name exists, `-` for standard input, and hex otherwise. A file's
kind is found from its first bytes, never from its name.
"""

import codecs
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path

from headrace.explain.capture import read_capture
from headrace.explain.events import Events, Fault, InputError, Note, Piece, counted, printable
from headrace.explain.headers import is_plausible
from headrace.explain.hextext import Chunk, parse_hex, read_text
from headrace.explain.limits import FILE_BYTES_MAX, TEXT_BYTES_MAX, TEXT_TO_BINARY, WHOLE_BYTES_MAX
from headrace.explain.link import Decapsulator
from headrace.explain.pcap import is_pcap, read_packets
from headrace.explain.source import ByteStream, Source, too_long
from headrace.explain.tcp import Tracker
from headrace.wire.header import MAGICS
from headrace.wire.limits import HEADER_BYTES

STANDARD_INPUT = "-"
_SNIFFED_BYTES = 4096
_SHOWN_ARGUMENT_CHARS = 40
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_COMPRESSED = {
    b"\x1f\x8b": "gunzip",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"\xfd7zXZ": "unxz",
    b"BZh": "bunzip2",
    b"PK\x03\x04": "unzip",
}

OnRead = Callable[[int], None]
Argument = tuple[int, str]
"""The place of an argument on the command line, from 1, and the argument."""


def read_inputs(
    arguments: Iterable[str],
    *,
    port: int | None = None,
    standard_input: ByteStream | None = None,
    on_read: OnRead | None = None,
) -> Events:
    """Yield what the arguments hold, one after the other; no argument means standard input.

    `port` is the server's port in packet captures. `on_read` is told how many bytes were read each time.
    """
    hex_arguments: list[Argument] = []
    for number, argument in enumerate(arguments or [STANDARD_INPUT], 1):
        if is_hex(argument):
            hex_arguments.append((number, argument))
            continue
        yield from _read_hex_arguments(hex_arguments, port)
        hex_arguments.clear()
        if argument == STANDARD_INPUT:
            yield from _read_standard_input(standard_input, port=port, on_read=on_read)
        else:
            yield from _read_path(Path(argument), port=port, on_read=on_read)
    yield from _read_hex_arguments(hex_arguments, port)


def input_bytes(arguments: Iterable[str]) -> int:
    """Add up the sizes of the files among the arguments, as far as they are known beforehand."""
    return sum(Path(argument).stat().st_size for argument in arguments if _is_path(argument))


def is_hex(argument: str) -> bool:
    """Tell whether an argument is to be read as hex, for being neither a file nor standard input."""
    return argument != STANDARD_INPUT and not _is_path(argument)


def _is_path(argument: str) -> bool:
    try:
        return bool(argument) and Path(argument).exists()
    except (OSError, ValueError):  # hex longer than a file name may be, or a character no name may have
        return False


def _read_standard_input(given: ByteStream | None, *, port: int | None, on_read: OnRead | None) -> Events:
    # Python has no sys.stdin where the shell closed it (<&-), whatever its type says.
    stream = given or getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise InputError("standard input is closed; give hex or a path")
    try:
        yield from read_source(Source(stream, "standard input", on_read=on_read), port=port)
    except OSError as error:
        raise InputError(f"standard input cannot be read: {os.strerror(error.errno or 0)}") from None


def _read_path(path: Path, *, port: int | None, on_read: OnRead | None) -> Events:
    try:
        if path.is_dir():
            raise InputError(f"{path} is a directory; name the files in it")
        if path.is_file() and path.stat().st_size > FILE_BYTES_MAX:
            raise InputError(too_long(str(path), FILE_BYTES_MAX))
        with path.open("rb") as stream:
            yield from read_source(Source(stream, path.name, on_read=on_read), port=port)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from None


def _read_hex_arguments(arguments: list[Argument], port: int | None) -> Events:
    chunks: list[Chunk] = []
    for number, argument in arguments:
        try:
            chunks.append((f"argument {number}", parse_hex(argument)))
        except InputError as error:
            shown = argument[:_SHOWN_ARGUMENT_CHARS] + "…" * (len(argument) > _SHOWN_ARGUMENT_CHARS)
            raise InputError(
                f"'{printable(shown)}' is neither an existing file nor hex: {error}. "
                "Give a path, hex like 80570005… or 0x80 0x57 …, or - for standard input"
            ) from None
    if arguments and not any(data for _, data in chunks):
        raise InputError("an empty argument holds no bytes; give hex, a path, or - for standard input")
    if arguments and port is not None:
        yield _port_ignored("hex")
    yield from _pieces(chunks, "hex")


def _port_ignored(name: str) -> Note:
    return Note(text=f"{name} is no packet capture; --port is ignored")


def _pieces(chunks: Iterable[Chunk], conversation: str) -> Iterator[Piece]:
    """Let a chunk that looks like a message start a piece; any other goes on with the one before it."""
    parts: list[Chunk] = []
    for chunk in chunks:
        if parts and is_plausible(chunk[1]):
            yield _piece(parts, conversation)
            parts.clear()
        parts.append(chunk)
    if parts:
        yield _piece(parts, conversation)


def _piece(parts: list[Chunk], conversation: str) -> Piece:
    starts = accumulate((len(data) for _, data in parts), initial=0)
    return Piece(
        conversation=conversation,
        direction=None,
        data=b"".join(data for _, data in parts),
        origin=parts[0][0],
        whole=True,
        joined=tuple((start, name) for start, (name, _) in zip(starts, parts, strict=False)),
    )


def read_source(source: Source, *, port: int | None = None) -> Events:
    """Yield what one file or stream holds, after a look at its first bytes."""
    head = source.glance(_SNIFFED_BYTES)
    if not head.strip():
        raise InputError(f"{source.name} is empty; give hex, a capture or a file of messages")
    for magic, tool in _COMPRESSED.items():
        if head.startswith(magic):
            raise InputError(f"{source.name} is compressed; unpack it with {tool} first")
    if is_pcap(head):
        yield from _read_pcap(source, port)
        return
    if port is not None:
        yield _port_ignored(source.name)
    if head.startswith(_BYTE_ORDER_MARK):
        source.read(len(_BYTE_ORDER_MARK))
        head = head[len(_BYTE_ORDER_MARK) :]
    if head.lstrip().startswith(b"{"):
        yield from read_capture(source.lines(), source.name)
    elif _is_text(head):
        yield from _read_hex_text(source)
    else:
        yield from _read_binary(source)


def _is_text(head: bytes) -> bool:
    """Tell text from messages: a message begins with a byte that no UTF-8 text begins with, or a control."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return _CONTROL.search(text) is None


def _read_pcap(source: Source, port: int | None) -> Events:
    decapsulator, tracker = Decapsulator(), Tracker(source.name, port)
    found_any = False
    for packet in read_packets(source):
        if isinstance(packet, Fault):
            yield packet
            continue
        segment = decapsulator.segment(packet)
        if segment is None:
            continue
        for event in tracker.add(segment):
            found_any = True
            yield event
    for event in tracker.finish():
        found_any = found_any or isinstance(event, Piece)
        yield event
    for reason, count in decapsulator.passed_over.items():
        yield Note(text=f"{counted(count, 'packet')} passed over: {reason}")
    if not found_any:
        where = "with TCP data" if port is None else f"with TCP data from or to port {port}"
        yield Note(text=f"{source.name} has no connection {where} that could be read")


def _read_hex_text(source: Source) -> Events:
    raw = source.rest(TEXT_BYTES_MAX, f"turn it into bytes first: {TEXT_TO_BINARY}")
    try:
        chunks = read_text(raw.decode())
    except UnicodeDecodeError as error:
        bad = f"byte {raw[error.start]:#04x} at {error.start}"
        raise InputError(f"{source.name} begins as text, and then comes {bad}") from None
    except InputError as error:
        raise InputError(
            f"{source.name} is neither hex nor a capture: {error}. Known are plain hex, the dumps of xxd, "
            "hexdump -C and od, byte pictures, JSON lines, pcap, pcapng, and binary messages"
        ) from None
    if not any(data for _, data in chunks):
        raise InputError(f"{source.name} holds comments and no bytes")
    yield from _pieces(((f"{place} of {source.name}", data) for place, data in chunks), source.name)


def _read_binary(source: Source) -> Events:
    head = source.peek(WHOLE_BYTES_MAX + 1)
    if head[0] not in MAGICS and len(head) < HEADER_BYTES:
        found = "1 byte that begins" if len(head) == 1 else f"{len(head)} bytes that begin"
        raise InputError(f"{source.name} holds {found} no message: {head.hex(' ')}")
    whole = len(head) <= WHOLE_BYTES_MAX
    for chunk in [source.read(len(head))] if whole else source.chunks():
        yield Piece(
            conversation=source.name,
            direction=None,
            data=chunk,
            origin=source.name,
            whole=whole,
            offset=source.offset - len(chunk),
        )
