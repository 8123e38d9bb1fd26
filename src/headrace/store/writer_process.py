"""The writer of a store in a process of its own.

Writing takes a whole core while it lasts: sorting keys, walking trees, copying pages. In a process of its own it takes
none of the time in which the node answers clients; the thread that calls here waits on a socket and holds no lock.

When the process dies in the middle of a write, that write may be on disk or not. Each write has a token, kept on disk
with it, so a new process can tell which: either the call returns as if nothing had happened, or it raises and nothing
was kept. A write is never sent a second time by itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace
from headrace.ids import Seqno, VBucketId
from headrace.store import framing, layout
from headrace.store.contract import Changes, FormatError, StoreError, VBucketRecord
from headrace.store.records import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STARTS_MAX = 3
"""How often one call tries to start a process that dies before it is ready."""
CLOSE_WAIT_S = 60.0
"""How long a process may finish what it was doing before it is killed."""


class _DiedError(StoreError):
    """The process is gone, in the middle of a call or before it."""


class WriterProcess:
    """Writes to the store in a directory through a child process. Blocking calls, from one thread at a time.

    The store exists when this is made. `lock_fd` is the file descriptor of a `DirectoryLock`, which the child holds
    too. A child that died is replaced at the next call.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        lock_fd: int | None = None,
        *,
        map_bytes: int | None = None,
    ) -> None:
        self._path = Path(path)
        self._lock_fd = lock_fd
        self._map_bytes = map_bytes
        self._name = secrets.token_hex(8)
        self._writes = 0
        self._is_open = True
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._connected()

    @property
    def pid(self) -> int | None:
        """The id of the child; None between its death and the next call."""
        return self._child.pid if self._child else None

    def write(self, changes: Sequence[Changes]) -> None:
        """Put records and vbuckets; a record replaces the older one of its key."""
        self._writes += 1
        token = f"{self._name}-{self._writes}"
        message = {"call": "write", "token": token}
        try:
            self._call(lambda connection: framing.send_changes(connection, message, changes))
        except _DiedError as death:
            try:
                kept = self._ask("token") == token
            except StoreError as error:
                raise StoreError(f"{death}; whether it was kept is not known: {error}") from error
            if not kept:
                raise

    def delete_vbucket(self, vbucket: VBucketId) -> None:
        """Forget a vbucket and all it holds; one that is not there is no error."""
        self._ask("delete_vbucket", vbucket=vbucket)

    def rollback(self, vbucket: VBucketId, to: int) -> VBucketRecord:
        """Take a vbucket back to its newest whole boundary that is not above `to`, and give what it is then.

        A child that dies meanwhile is replaced and asked again: to roll back twice is to roll back once.
        """
        try:
            fields = self._ask("rollback", vbucket=vbucket, to=to)
        except _DiedError:
            fields = self._ask("rollback", vbucket=vbucket, to=to)
        return layout.vbucket_from_fields(fields)

    def purge(self, vbucket: VBucketId | None = None, *, deleted_before: int, limit: int) -> dict[VBucketId, Seqno]:
        """Drop at most `limit` tombstones older than a time, oldest first; give each vbucket's new purge seqno.

        When the child dies meanwhile, this raises, and the purge may have been done or not: the seqnos are on disk.
        """
        purged = self._ask("purge", vbucket=vbucket, deleted_before=deleted_before, limit=limit)
        return {VBucketId(one): Seqno(seqno) for one, seqno in purged}

    def compact(self) -> None:
        """See `StoreWriter.compact`."""
        self._ask("compact")

    def close(self) -> None:
        """Let the child finish and end."""
        self._is_open = False
        self._bury()

    def _ask(self, call: str, **arguments: Any) -> Any:
        return self._call(lambda connection: framing.send(connection, {"call": call, **arguments}))

    def _call(self, send: Callable[[socket.socket], None]) -> Any:
        return self._exchange(self._connected(), send)

    def _exchange(self, connection: socket.socket, send: Callable[[socket.socket], None]) -> Any:
        try:
            send(connection)
            answer = framing.receive(connection)
        except (OSError, EOFError) as error:
            raise _DiedError(f"the writer process of the store in {self._path} {self._bury()} during a call") from error
        except BaseException:
            # Interrupted between question and answer: the next answer would be taken for that of another call.
            self._bury()
            raise
        if "error" in answer:
            raise (FormatError if answer["format"] else StoreError)(answer["error"])
        return answer["result"]

    def _connected(self) -> socket.socket:
        if not self._is_open:
            raise StoreError(f"the writer of the store in {self._path} is closed")
        if self._connection is not None:
            return self._connection
        for start in range(STARTS_MAX):
            try:
                return self._start()
            except _DiedError:
                if start == STARTS_MAX - 1:
                    raise
            except BaseException:
                self._bury()
                raise
        raise AssertionError

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        fds = [theirs.fileno()] if self._lock_fd is None else [theirs.fileno(), self._lock_fd]
        # The child must run the code of this process, wherever that was imported from.
        roots = [str(Path(headrace.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            try:
                self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [sys.executable, "-P", "-m", "headrace.store.writer_child", str(theirs.fileno())],
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
                )
            except OSError as error:
                ours.close()
                raise StoreError(f"cannot start a writer process for the store in {self._path}: {error}") from error
        self._connection = ours
        opening = {"path": str(self._path), "places": PLACES.to_json(), "map_bytes": self._map_bytes}
        self._exchange(ours, lambda connection: framing.send(connection, opening))
        return ours

    def _bury(self) -> str:
        """Let the child end, take it off the system's table, and say how it ended."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        child, self._child = self._child, None
        if child is None:
            return "had ended"
        try:
            code = child.wait(CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        if code >= 0:
            return f"(pid {child.pid}) ended with code {code}"
        with contextlib.suppress(ValueError):
            return f"(pid {child.pid}) was ended by {signal.Signals(-code).name}"
        return f"(pid {child.pid}) was ended by signal {-code}"
