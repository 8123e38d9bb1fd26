"""The writer process itself: `python -m headrace.store.writer_child FD`, started by `WriterProcess` and nobody else.

It takes calls from the socket it was given, one after the other, and ends when the socket does: whatever it was doing
is then finished or, when the call had not come whole, was never begun. The signals that ask a process to end are for
its parent, which closes the socket when it is done: a terminal's Ctrl-C and a supervisor's SIGTERM go to both.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from headrace.ids import VBucketId
from headrace.store import framing, layout, residency
from headrace.store.contract import FormatError, StoreError
from headrace.store.places import Places
from headrace.store.writing import StoreWriter

NICE = 10

ANONYMOUS_BYTES_MAX = 128 << 20
"""How much memory of its own the process keeps between two transactions."""


def main() -> None:
    """Serve one connection."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    # Nothing here makes cycles, and the collector would walk the lists of each batch again and again.
    gc.disable()
    # Where cores are short, they are the node's: clients wait for its answers, and nobody for a flush.
    os.nice(NICE)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        try:
            opening = framing.receive(connection)
            try:
                writer = StoreWriter(
                    Path(opening["path"]), Places.from_json(opening["places"]), map_bytes=opening["map_bytes"]
                )
            except StoreError as error:
                framing.send(connection, _failure(error))
                return
            framing.send(connection, {"result": os.getpid()})
            try:
                while True:
                    _serve(connection, writer)
            finally:
                writer.close()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _serve(connection: socket.socket, writer: StoreWriter) -> None:
    message = framing.receive(connection)
    try:
        result = _call(connection, writer, message)
    except StoreError as error:
        framing.send(connection, _failure(error))
    else:
        framing.send(connection, {"result": result})
        if residency.anonymous_bytes() > ANONYMOUS_BYTES_MAX:
            writer.shrink()


def _call(connection: socket.socket, writer: StoreWriter, message: dict[str, Any]) -> Any:
    match message["call"]:
        case "write":
            writer.write(framing.receive_changes(connection, message, writer.places), token=message["token"].encode())
        case "token":
            return writer.token().decode()
        case "delete_vbucket":
            writer.delete_vbucket(VBucketId(message["vbucket"]))
        case "rollback":
            return layout.vbucket_fields(writer.rollback(VBucketId(message["vbucket"]), message["to"]))
        case "purge":
            vbucket = None if message["vbucket"] is None else VBucketId(message["vbucket"])
            purged = writer.purge(vbucket, deleted_before=message["deleted_before"], limit=message["limit"])
            return list(purged.items())
        case "compact":
            writer.compact()
        case other:
            raise StoreError(f"the writer process knows no call {other!r}")
    return None


def _failure(error: StoreError) -> dict[str, Any]:
    return {"error": str(error), "format": isinstance(error, FormatError)}


if __name__ == "__main__":
    main()
