"""TAP clients that may come back: how far each of them is, and nothing else.

A server of TAP's time kept the changes themselves for a registered client that was away, and ran out of memory when it
stayed away. Here a client is two numbers for each vbucket: the branch that it has, and the seqno up to which it has
it. Changes behind that are read when it is there.
"""

from __future__ import annotations

from array import array


class Cursors:
    """How far one client is, vbucket by vbucket."""

    __slots__ = ("_seqnos", "_vbuuids")

    def __init__(self, vbuckets: int) -> None:
        self._vbuuids = array("Q", bytes(8 * vbuckets))
        self._seqnos = array("Q", bytes(8 * vbuckets))

    def put(self, vbucket: int, vbuuid: int, seqno: int) -> None:
        """The client has a vbucket up to a seqno."""
        self._vbuuids[vbucket] = vbuuid
        self._seqnos[vbucket] = seqno

    def get(self, vbucket: int) -> tuple[int, int] | None:
        """Branch and seqno of a vbucket; None where nothing of it was sent."""
        vbuuid = self._vbuuids[vbucket]
        return (vbuuid, self._seqnos[vbucket]) if vbuuid else None


class Registered:
    """The registered clients of one bucket, by name."""

    def __init__(self) -> None:
        self._clients: dict[str, Cursors] = {}

    def __len__(self) -> int:
        return len(self._clients)

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
