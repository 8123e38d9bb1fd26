"""A node of an old server, before its dump: how it is opened, what it has, and who is to dump what.

**The password.** Old servers know PLAIN and CRAM-MD5. The rule of `opening` holds here, too: a password goes by SCRAM
or inside TLS, or it does not go.

**The bucket.** Before 5.0 no command selects one: a user is a bucket, and who is nobody gets the bucket `default`.

**The disk.** Releases 3 and 4 read a dump from disk (4.1.2: 100 items that were in memory alone, and none of them in
the dump). So what a vbucket holds is waited for to be written, by the server's own count of what it has queued for its
disk and what it has taken from there. SEQNO_PERSISTENCE would say it in one word, but 4.1.2 takes up to 10 s to answer
for each vbucket, also when all was written long ago.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.client.cluster_map import ClusterMap
from headrace.client.connection import NodeConnection
from headrace.client.errors import (
    AuthFailedError,
    ClientError,
    ConnectionLostError,
    InvalidError,
    NotFoundError,
    NotSupportedError,
    ServerAnswerError,
    UnknownCommandError,
    error_of,
)
from headrace.client.opening import DEFAULT_BUCKET, Login, opening
from headrace.client.options import OptionError
from headrace.client.transport import TIMEOUT_S_MAX, Transport
from headrace.wire import decode, encode
from headrace.wire.catalogue import DeregisterTapClient, Done, ErrorReply, GetClusterConfig, Stat, StatEntry, Text
from headrace.wire.codes import Feature

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.client.address import Address
    from headrace.client.options import ChangeOptions
    from headrace.wire import Frame

SILENCE_S_MAX = 90.0
"""How long a server may be silent while it reads its disk (idle, it gives a sign of life each 20 s), or write nothing
of what it has to."""

PAUSE_S = 0.2
"""How long to wait before the server is asked again what it wrote."""

_FEATURES = (Feature.SELECT_BUCKET, Feature.JSON)
_NONE_SUCH = (NotFoundError, UnknownCommandError, NotSupportedError, InvalidError)
_NAMED_MAX = 8
_ACTIVE = "active"
_STATISTIC = re.compile(r"vb_(\d{1,5})(?::(num_items|queue_size|queue_fill|queue_drain))?")
_WAY_OUT = (
    ": connect by couchbases://, to port 11207 of release 3.0 and later or to a TLS tunnel before an older one; "
    "the bucket default without a password needs no user"
)


class NotOnDiskError(ClientError):
    """A server does not write what it holds, and would leave it out of a dump."""

    retriable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a server says of one of its vbuckets; None where it does not."""

    state: str
    num_items: int | None = None
    queue_size: int | None = None
    """What waits to be written."""
    queue_fill: int | None = None
    """What was ever to be written, as a count."""
    queue_drain: int | None = None
    """What of that was written."""

    @property
    def is_active(self) -> bool:
        """Whether it is dumped at all."""
        return self.state == _ACTIVE

    def has_written(self, before: Held) -> bool:
        """Whether all is on disk that was to be written at an earlier look; so it is where the server does not tell."""
        if not self.queue_size or self.queue_drain is None or before.queue_fill is None:
            return True
        return self.queue_drain >= before.queue_fill


@dataclass(frozen=True, slots=True)
class TapPart:
    """What one connection dumps: some vbuckets of a node, or all of a node that does not tell which it has."""

    node: Address
    vbuckets: tuple[int, ...] | None = None


class _Line(Transport):
    """A transport that tells if something waits, and whose server may be silent for longer while it dumps."""

    @property
    def is_drained(self) -> bool:
        """Whether the next frame has to be waited for."""
        return not self._frames

    def wait_for(self, seconds: float) -> None:
        """Wait so long for a byte, at least."""
        self._timeout_s = min(max(seconds, self._timeout_s), TIMEOUT_S_MAX)

    def take(self) -> list[Frame]:
        """Frames that are there, without waiting; those that came before the end are given before it is told."""
        with self._translated("the connection broke"):
            try:
                self._fill()
            except (ConnectionLostError, OSError):
                if not self._frames:
                    raise
        frames = list(self._frames)
        self._frames.clear()
        return frames


class TapConnection(NodeConnection):
    """A connection to a node of an old server."""

    _transport: _Line

    def __init__(self, node: Address, options: ChangeOptions) -> None:
        # Not the base's: it would make a transport of its own.
        self.address = node
        self.bucket = options.bucket
        self.features = frozenset()
        self._opaque = 0
        self._transport = _Line(node, tls=options.tls(), timeout_s=options.timeout_s)
        try:
            self._open(options.username, options.password)
        except BaseException:
            self.close()
            raise

    @property
    def is_drained(self) -> bool:
        """Whether the next frame has to be waited for."""
        return self._transport.is_drained

    def fileno(self) -> int:
        """What to poll."""
        return self._transport.fileno()

    def take(self) -> list[Frame]:
        """Frames that are there, without waiting."""
        with self._closing():
            return self._transport.take()

    def read(self) -> bytes:
        """Bytes that are there, for who carries them elsewhere; not to be mixed with frames."""
        return self._transport.read()

    def write(self, data: memoryview) -> int:
        """Send as much as goes now, and give how much."""
        return self._transport.write(data)

    def knows(self, name: str) -> bool:
        """Whether the server has a TAP client of that name, which has had its backfill."""
        with suppress(*_NONE_SUCH):
            return self.statistics("tap").get(f"eq_tapq:{name}:backfill_completed") == "true"
        return False

    def deregister(self, name: str) -> None:
        """Have the server forget a registered client; it agrees also when it knows none of that name."""
        asked = f"to deregister the TAP client {name} at {self.address}"
        self._expect(Done, DeregisterTapClient(name=name.encode()), asked=asked)

    def expect_silence(self) -> None:
        """Wait for the server as long as it may take to read its disk."""
        self._transport.wait_for(SILENCE_S_MAX)

    def cluster_map(self) -> ClusterMap | None:
        """Where the vbuckets of the bucket are; None where the server does not tell, as before 2.5."""
        with suppress(*_NONE_SUCH):
            config = self._expect(Text, GetClusterConfig(), asked=f"the cluster config of {self.address}")
            if config.value:
                return ClusterMap.parse(config.value, dialled=self.address)
        return None

    def held(self) -> dict[int, Held] | None:
        """The vbuckets of this node; None where it does not tell."""
        for group in ("vbucket-details", "vbucket"):
            with suppress(*_NONE_SUCH):
                if found := _held(self.statistics(group)):
                    return found
        return None

    def await_disk(self, vbuckets: Collection[int], held: Mapping[int, Held]) -> None:
        """Wait until vbuckets have written what they held at an earlier look."""
        now: Mapping[int, Held] = held
        written, progress_at = -1, time.monotonic()
        while waiting := {vb for vb in vbuckets if vb in now and not now[vb].has_written(held[vb])}:
            drained = sum(now[vb].queue_drain or 0 for vb in waiting)
            if drained != written:
                written, progress_at = drained, time.monotonic()
            elif time.monotonic() > progress_at + SILENCE_S_MAX:
                raise NotOnDiskError(
                    f"{self.address}: {named(waiting)} not written to disk, where a dump is read from, and for "
                    f"{SILENCE_S_MAX:g} s nothing was: is persistence stopped, or the disk full?"
                )
            time.sleep(PAUSE_S)
            now = self.held() or {}

    def statistics(self, group: str) -> dict[str, str]:
        """A group of statistics."""
        self.send(encode(Stat(key=group.encode(), opaque=self._next_opaque())))
        found: dict[str, str] = {}
        while True:
            reply = decode(self.next_frame())
            if isinstance(reply, ErrorReply):
                raise error_of(f"statistics {group} of {self.address}", reply.status, reply.value)
            if not isinstance(reply, StatEntry):
                self.close()
                raise ServerAnswerError(f"{self.address}: a statistic is none: {reply!r}")
            if not reply.key:
                return found
            found[reply.key.decode(errors="replace")] = reply.value.decode(errors="replace")

    def _open(self, username: str | None, password: str | None) -> None:
        login = Login(address=self.address, bucket=self.bucket, username=username, password=password)
        try:
            self.features = self._go_through(opening(login, _FEATURES))
        except AuthFailedError as error:
            hint = _WAY_OUT if "PLAIN" in error.text else ""
            raise AuthFailedError(error.asked, error.status, error.text + hint) from None
        except NotSupportedError as error:  # it was let in, and has no command to select a bucket
            if error.asked != f"bucket {self.bucket} at {self.address}":
                raise
        own = username if username is not None else DEFAULT_BUCKET
        if Feature.SELECT_BUCKET not in self.features and own != self.bucket:
            raise OptionError(
                f"{self.address}: a server before 5.0 gives a user the bucket of the same name, and everybody else the "
                f"bucket {DEFAULT_BUCKET}; here that is {own}, not {self.bucket}"
            )


def tap_parts(options: ChangeOptions, parts_min: int = 1) -> list[TapPart]:
    """Plan the dump of a bucket: which connection, to which node, takes which vbuckets.

    There are at least so many parts, where there are so many vbuckets, and one for each node. Each costs the old server
    memory, and the time of its disk.

    The nodes are those of the cluster map, or those of the connection string where servers do not tell one. It raises
    where a vbucket is active nowhere.
    """
    nodes, wanted = _nodes(options)
    active: dict[Address, list[int]] = {}
    untold = []
    seen: set[int] = set()
    for node in nodes:
        with TapConnection(node, options) as connection:
            held = connection.held()
        if held is None:
            untold.append(TapPart(node, options.vbuckets))
            continue
        found = {vb for vb, each in held.items() if each.is_active} - seen
        active[node] = sorted(found if options.vbuckets is None else found & set(options.vbuckets))
        seen |= found
    if not untold and (missing := wanted - seen):
        raise ConnectionLostError(f"{', '.join(map(str, nodes))}: {named(missing)} active nowhere")
    share = -(-parts_min // max(len(active), 1))
    told = []
    for node, vbuckets in active.items():
        count = min(share, len(vbuckets))
        told += [TapPart(node, tuple(vbuckets[place::count])) for place in range(count)]
    return untold + told


def _nodes(options: ChangeOptions) -> tuple[list[Address], set[int]]:
    """The nodes to dump, and the vbuckets that they have to have together."""
    trouble: ConnectionLostError | None = None
    for seed in options.seeds:
        try:
            with TapConnection(seed, options) as connection:
                cluster = connection.cluster_map()
        except ConnectionLostError as error:
            trouble = error
            continue
        if cluster is None:
            return list(options.seeds), set(options.vbuckets or ())
        count = len(cluster.copies)
        vbuckets = range(count) if options.vbuckets is None else options.vbuckets
        if strange := [vb for vb in vbuckets if vb >= count]:
            raise OptionError(f"{seed}: bucket {options.bucket} has {count} vbuckets, and no vbucket {strange[0]}")
        owners = {cluster.node_of(vb) for vb in vbuckets}
        return [node for node in cluster.nodes if node in owners], set(vbuckets)
    assert trouble is not None
    raise trouble


def _held(stats: Mapping[str, str]) -> dict[int, Held]:
    states: dict[int, str] = {}
    numbers: dict[int, dict[str, int]] = {}
    for name, text in stats.items():
        found = _STATISTIC.fullmatch(name)
        if found is not None and found[2] is None:
            states[int(found[1])] = text
        elif found is not None and text.isdecimal():
            numbers.setdefault(int(found[1]), {})[found[2]] = int(text)
    return {vb: Held(state=state, **numbers.get(vb, {})) for vb, state in states.items()}


def named(vbuckets: Collection[int]) -> str:
    """Some vbuckets, as the beginning of a sentence about them."""
    first = ", ".join(map(str, sorted(vbuckets)[:_NAMED_MAX]))
    more = f" and {len(vbuckets) - _NAMED_MAX} more" if len(vbuckets) > _NAMED_MAX else ""
    return f"vbucket {first} is" if len(vbuckets) == 1 else f"vbuckets {first}{more} are"


__all__ = ["SILENCE_S_MAX", "Held", "NotOnDiskError", "TapConnection", "TapPart", "named", "tap_parts"]
