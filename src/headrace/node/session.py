"""What a node knows of one client: who it is, what it agreed on, and the bucket that it works on.

No IO here: `Connection` moves the bytes, `hot.serve` and the commands read and answer requests through this.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.node.refused import Refused
from headrace.node.sasl import SaslServer
from headrace.node.users import EVERY_BUCKET, Role, User
from headrace.node.values import JSON, SNAPPY, XATTR
from headrace.wire import Dialect
from headrace.wire.codes import Feature, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.node.bucket import Bucket
    from headrace.node.buckets import Buckets, OpenBucket
    from headrace.node.dcp.ends import DcpEnd, Line
    from headrace.node.services import Services

GRANTED = frozenset(
    {
        Feature.TCP_NODELAY,
        Feature.MUTATION_SEQNO,
        Feature.XATTR,
        Feature.XERROR,
        Feature.SELECT_BUCKET,
        Feature.SNAPPY,
        Feature.JSON,
        Feature.DUPLEX,
        Feature.ALT_REQUEST,
        Feature.PRESERVE_TTL,
    }
)
"""What hello may agree on. Each of them is a duty: see clients' needs in docs/reference/node.md."""


_BEFORE_XERROR = {Status.LOCKED: Status.KEY_EXISTS, Status.NOT_LOCKED: Status.TEMPORARY_FAILURE}


class Session:
    """The state of one client."""

    __slots__ = (
        "agent",
        "bucket",
        "close_after_reply",
        "datatypes",
        "dialect",
        "end",
        "ends",
        "failed_logins",
        "fault",
        "features",
        "implied_bucket",
        "is_dialect_told",
        "left",
        "line",
        "local",
        "may_read",
        "may_write",
        "now",
        "opened",
        "out",
        "out_bytes",
        "peer",
        "pending",
        "requests",
        "said_hello",
        "sasl",
        "services",
        "tap_nacks",
        "tap_steps",
        "tells_seqno",
        "user",
    )

    def __init__(self, services: Services, *, peer: str = "", local: str = "") -> None:
        self.services = services
        self.peer = peer
        self.local = local
        self.agent = ""
        self.user: User | None = services.open_user
        self.sasl = SaslServer(services.users)
        self.failed_logins = 0
        self.features: frozenset[int] = frozenset()
        self.said_hello = False
        self.datatypes = 0
        self.tells_seqno = False
        self.opened: OpenBucket | None = None
        self.implied_bucket = False
        self.may_read = self.may_write = False
        self.bucket: Bucket | None = None
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.pending: Awaitable[None] | None = None
        """What the last request waits for; requests behind it wait too, since answers come in order."""
        self.close_after_reply = False
        self.fault: str | None = None
        """What makes the bytes of this client no messages; there is no going on after that."""
        self.left: str | None = None
        """Why the client is left without a word, once that is so."""
        self.requests = 0
        self.line: Line | None = None
        """The way to the client for what is no answer; the connection sets it."""
        self.dialect = services.dialect or Dialect.DCP
        """How its messages are read; what TAP has and others lack is read as TAP in any."""
        self.is_dialect_told = services.dialect is not None
        """Whether it is known: by the first message that UPR or DCP has, or since the node was told which to speak."""
        self.end: DcpEnd | None = None
        """What the connection is after DCP OPEN."""
        self.ends: dict[str, Session] = {}
        """Where it is entered by its name then: in the bucket that it was opened for, whatever is selected later."""
        self.tap_nacks = False
        """Whether a TAP message that is refused is told of, though no ack was asked for."""
        self.tap_steps: dict[int, int] = {}
        """The turns in the states of vbuckets that it brought about by TAP, by their numbers."""
        self.now: Callable[[], float] = time.monotonic
        self.imply_bucket()

    @property
    def buckets(self) -> Buckets:
        """All buckets of the node."""
        return self.services.buckets

    def may(self, role: Role) -> bool:
        """Whether the client may do what a role allows, in its bucket."""
        return self.user is not None and self.user.may(role, self.bucket.name if self.bucket else EVERY_BUCKET)

    def select(self, opened: OpenBucket | None, *, implied: bool = False) -> None:
        """Work on a bucket from now on, or on none."""
        self.opened = opened
        self.bucket = opened.bucket if opened else None
        self.implied_bucket = implied and opened is not None
        self.may_read = opened is not None and self.may(Role.READ)
        self.may_write = opened is not None and self.may(Role.WRITE)

    def imply_bucket(self) -> None:
        """Clients of memcached and of TAP know no buckets: theirs is `default`, where they may use it."""
        opened, user = self.buckets.get("default"), self.user
        may_use = user is not None and any(user.may(role, "default") for role in (Role.READ, Role.STREAM))
        if opened is not None and may_use:
            self.select(opened, implied=True)
        else:
            self.select(None)

    def authenticated(self, user: User) -> None:
        """Someone proved who they are; what they may do starts anew."""
        self.user = user
        if Feature.SELECT_BUCKET in self.features:
            self.select(None)
        else:
            self.imply_bucket()

    def agree(self, features: frozenset[int], agent: str) -> None:
        """Hello: these features hold from now on."""
        self.said_hello = True
        self.agent = agent
        self.features = features
        self.datatypes = sum(
            bit
            for feature, bit in ((Feature.JSON, JSON), (Feature.SNAPPY, SNAPPY), (Feature.XATTR, XATTR))
            if feature in features
        )
        self.tells_seqno = Feature.MUTATION_SEQNO in features
        # Who knows how to select a bucket has not selected one: Couchbase's SDKs ask for a map of no bucket.
        if Feature.SELECT_BUCKET in features and self.implied_bucket:
            self.select(None)

    def worded(self, refused: Refused) -> Refused:
        """A refusal in statuses that the client knows: some came late, and only with hello 0x07."""
        if Feature.XERROR in self.features:
            return refused
        status = _BEFORE_XERROR.get(refused.status)
        return refused if status is None else Refused(status, refused.text)

    @property
    def stops(self) -> bool:
        """Whether what stands behind the last request must not be served now."""
        return self.pending is not None or self.close_after_reply or self.fault is not None or self.left is not None

    def leave(self, why: str) -> None:
        """Close the connection without an answer."""
        if self.line is not None:
            self.line.leave(why)

    def send(self, reply: bytes) -> None:
        """Answer, behind all that was answered before."""
        self.out.append(reply)
        self.out_bytes += len(reply)
