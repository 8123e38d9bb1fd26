"""TAP clients that may come back: how far each of them is, and nothing else.

A server of TAP's time kept the changes themselves for a registered client that was away, and ran out of memory when it
stayed away. Here a client is three numbers for each vbucket: the branch that it has, the seqno up to which it has
it, and from which seqno on that is all of it. Changes behind that are read when it is there.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from headrace.protocol.tap import Reached

if TYPE_CHECKING:
    from collections.abc import Iterator


class Cursors:
    """How far one client is, vbucket by vbucket."""

    __slots__ = ("_seqnos", "_vbuuids", "_whole_at")

    def __init__(self, vbuckets: int) -> None:
        self._vbuuids = array("Q", bytes(8 * vbuckets))
        self._seqnos = array("Q", bytes(8 * vbuckets))
        self._whole_at = array("Q", bytes(8 * vbuckets))

    def put(self, vbucket: int, reached: Reached) -> None:
        """The client is so far with a vbucket."""
        self._vbuuids[vbucket], self._seqnos[vbucket], self._whole_at[vbucket] = reached

    def get(self, vbucket: int) -> Reached | None:
        """How far it is with a vbucket; None where nothing of it was sent."""
        vbuuid = self._vbuuids[vbucket]
        return Reached(vbuuid, self._seqnos[vbucket], self._whole_at[vbucket]) if vbuuid else None


class Registered:
    """The registered clients of one bucket, by name."""

    def __init__(self) -> None:
        self._clients: dict[str, Cursors] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def get(self, name: str) -> Cursors | None:
        """A client that is known."""
        return self._clients.get(name)

    def add(self, name: str, *, vbuckets: int, most: int) -> Cursors | None:
        """Remember a client, or find it; None when there are too many."""
        found = self._clients.get(name)
        if found is None and len(self._clients) < most:
            found = self._clients[name] = Cursors(vbuckets)
        return found

    def remove(self, name: str) -> None:
        """Forget a client, if it is known."""
        self._clients.pop(name, None)
