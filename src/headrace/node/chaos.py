"""Trouble that is made on purpose, for people who test consumers: the faults of `protocol.faults`, done to one bucket.

Vbuckets go back (`going_back`), tombstones and the disk are told to; connections get a `Trouble` (`dcp.trouble`).
What is to last is kept as rules, and every producer that opens a connection while there are any meets them. A bucket to
which nobody did anything has no `Chaos`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from headrace.history import State
from headrace.node.dcp.sender import Sender
from headrace.node.dcp.trouble import Refusal
from headrace.node.going_back import go_back
from headrace.node.refused import Refused
from headrace.node.tap.producer import TapProducer
from headrace.protocol.faults import ALL
from headrace.protocol.trouble import Cut, Throttle
from headrace.wire.codes import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from headrace.node.buckets import OpenBucket
    from headrace.node.session import Session
    from headrace.node.vbucket import VBucket
    from headrace.wire.catalogue import StreamRequest

Effect = dict[str, Any]
"""What was done to one thing: what it is, then what it is like now."""

_TIME_MAX = 0xFFFF_FFFF


@dataclass(slots=True, kw_only=True)
class _Refusing:
    """Stream requests that are refused as long as there are any left."""

    name: str
    vbuckets: str | tuple[int, ...]
    left: int
    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cutting:
    """Connections that are cut as soon as they have sent so much."""

    name: str
    messages: int
    size: int | None
    mid_message: bool

    def begin(self) -> Cut:
        """Count for one connection."""
        return Cut(messages=self.messages, size=self.size, mid_message=self.mid_message)


class Chaos:
    """The troubles of one bucket."""

    def __init__(self, opened: OpenBucket) -> None:
        self._opened = opened
        self._lock = asyncio.Lock()
        """Held by whoever takes vbuckets back: two at once would each have the other's state to return to."""
        self._slow: list[tuple[str, int]] = []
        self._cuts: list[_Cutting] = []
        self._refusals: list[_Refusing] = []
        self._faults: dict[str, Callable[..., list[Effect] | Awaitable[list[Effect]]]] = {
            "failover": self._failover,
            "rollback": self._rollback,
            "pause": self._pause,
            "resume": self._resume,
            "purge": self._purge,
            "slow": self._slow_down,
            "cut": self._cut,
            "end": self._end,
            "refuse": self._refuse,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "calm": self._calm,
            "show": self._show,
        }

    async def do(self, fault: str, arguments: dict[str, Any]) -> list[Effect]:
        """Make a trouble, and tell what became of it; raise Refused when there is nothing to make it with."""
        effects = self._faults[fault](**arguments)
        return effects if isinstance(effects, list) else await effects

    # ------------------------------------------------------------------------------------------------------- vbuckets

    def _vbuckets(self, wanted: str | tuple[int, ...]) -> list[VBucket]:
        bucket = self._opened.bucket
        if wanted == ALL:
            return [vb for vb in bucket.vbuckets if vb is not None]
        return [bucket.vbucket(int(vb_id)) for vb_id in wanted]

    async def _failover(self, vbuckets: str | tuple[int, ...], lost: int) -> list[Effect]:
        async with self._lock:
            return [
                await self._gone_back(vb, max(0, vb.whole_seqno - lost), State.ACTIVE)
                for vb in self._vbuckets(vbuckets)
            ]

    async def _rollback(self, vbuckets: str | tuple[int, ...], to: int) -> list[Effect]:
        async with self._lock:
            return [await self._gone_back(vb, to, vb.state) for vb in self._vbuckets(vbuckets)]

    async def _gone_back(self, vb: VBucket, to: int, then: State) -> Effect:
        before = vb.high_seqno
        reached = await go_back(self._opened, vb, to, then=then)
        return {
            "vbucket": vb.id,
            "state": then.name.lower(),
            "from": before,
            "to": reached,
            "lost": before - reached,
            "vbuuid": vb.vbuuid,
        }

    async def _purge(self, vbuckets: str | tuple[int, ...], older_than_s: int) -> list[Effect]:
        opened = self._opened
        found = self._vbuckets(vbuckets)
        if not opened.flusher.stopped:
            await opened.flusher.on_disk()
        before = max(1, int(time.time()) - older_than_s) if older_than_s else _TIME_MAX
        for vb in found:
            await opened.pager.purge(deleted_before=before, vbucket=vb.id)
        return [{"vbucket": vb.id, "purge_seqno": vb.purge_seqno} for vb in found]

    # ----------------------------------------------------------------------------------------------------------- disk

    def _pause(self) -> list[Effect]:
        self._opened.flusher.stop_persistence()
        return self._persistence()

    def _resume(self) -> list[Effect]:
        self._opened.flusher.start_persistence()
        return self._persistence()

    def _persistence(self) -> list[Effect]:
        opened = self._opened
        return [{"bucket": opened.bucket.name, "persistence": "paused" if opened.flusher.stopped else "on"}]

    # ---------------------------------------------------------------------------------------------------- connections

    def meet(self, session: Session) -> None:
        """Do to a connection that was just opened what the rules say."""
        producer = session.end
        if not isinstance(producer, Sender | TapProducer):
            return
        for name, rate in self._slow:
            if fnmatchcase(producer.name, name):
                producer.make_trouble().throttle = Throttle(rate)
        for rule in self._cuts:
            if fnmatchcase(producer.name, rule.name):
                producer.make_trouble().arm(rule.begin())
        if self._refusals and isinstance(producer, Sender):
            self._watch(producer)

    def _connections(self, name: str) -> list[Sender | TapProducer]:
        """Whatever sends changes, by TAP too: all of it can be slow, cut or frozen."""
        return [*self._producers(name), *(tap for tap in self._opened.tap_ends() if fnmatchcase(tap.name, name))]

    def _some_connections(self, name: str) -> list[Sender | TapProducer]:
        found = self._connections(name)
        if not found:
            raise Refused(Status.KEY_NOT_FOUND, f"no DCP or TAP connection is open whose name is {name}")
        return found

    def _producers(self, name: str) -> list[Sender]:
        ends = [session.end for session in self._opened.ends.values()]
        return [end for end in ends if isinstance(end, Sender) and fnmatchcase(end.name, name)]

    def _some_producers(self, name: str) -> list[Sender]:
        found = self._producers(name)
        if not found:
            raise Refused(Status.KEY_NOT_FOUND, f"no DCP connection is open whose name is {name}")
        return found

    def _slow_down(self, bytes_per_second: int, name: str) -> list[Effect]:
        self._slow = [rule for rule in self._slow if rule[0] != name]
        self._slow.append((name, bytes_per_second))
        for producer in self._connections(name):
            producer.make_trouble().throttle = Throttle(bytes_per_second)
        slowed: list[Effect] = [{"rule": "slow", "name": name, "bytes_per_second": bytes_per_second}]
        return slowed + [_connection(producer, "slow") for producer in self._connections(name)]

    def _cut(
        self,
        name: str,
        after_messages: int | None,
        after_bytes: int | None,
        mid_message: bool,  # noqa: FBT001 - it comes by its name
        again: bool,  # noqa: FBT001
    ) -> list[Effect]:
        if after_bytes is not None and (after_messages is not None or mid_message):
            raise Refused(Status.INVALID, "after_bytes is exact: it goes with neither after_messages nor mid_message")
        rule = _Cutting(name=name, messages=after_messages or 0, size=after_bytes, mid_message=mid_message)
        if again and rule.begin().is_now:
            raise Refused(Status.INVALID, "connections that come are cut after some messages or bytes, not before")
        if again:
            self._cuts.append(rule)
        effects = []
        for producer in self._connections(name) if again else self._some_connections(name):
            effects.append(_connection(producer, "to be cut"))
            producer.make_trouble().arm(rule.begin())
        return [{"rule": "cut", "name": name}, *effects] if again else effects

    def _end(self, vbuckets: str | tuple[int, ...], name: str, reason: int) -> list[Effect]:
        wanted = [vb.id for vb in self._vbuckets(vbuckets)]
        effects = [
            {"vbucket": vb_id, "connection": producer.name, "reason": reason}
            for producer in self._some_producers(name)
            for vb_id in wanted
            if producer.end_stream(vb_id, reason)
        ]
        if not effects:
            raise Refused(Status.KEY_NOT_FOUND, f"no connection whose name is {name} has such a stream")
        return effects

    def _refuse(self, status: int, count: int, seqno: int, vbuckets: str | tuple[int, ...], name: str) -> list[Effect]:
        self._vbuckets(vbuckets)
        refusal = Refusal(status=status, seqno=seqno)
        self._refusals.append(_Refusing(name=name, vbuckets=vbuckets, left=count, refusal=refusal))
        for producer in self._producers("*"):
            self._watch(producer)
        return self._rules()

    def _watch(self, producer: Sender) -> None:
        name = producer.name
        producer.make_trouble().refusal_of = lambda request: self._refusal(name, request)

    def _refusal(self, name: str, request: StreamRequest) -> Refusal | None:
        for rule in self._refusals:
            of_it = rule.vbuckets == ALL or request.vbucket in rule.vbuckets
            if of_it and fnmatchcase(name, rule.name):
                rule.left -= 1
                if not rule.left:
                    self._refusals.remove(rule)
                return rule.refusal
        return None

    def _freeze(self, name: str) -> list[Effect]:
        found = self._some_connections(name)
        for producer in found:
            producer.make_trouble().freeze()
        return [_connection(producer, "frozen") for producer in found]

    def _thaw(self, name: str) -> list[Effect]:
        found = [one for one in self._some_connections(name) if one.trouble is not None and one.trouble.is_frozen]
        for producer in found:
            producer.make_trouble().thaw()
        return [_connection(producer, "thawed") for producer in found]

    # ------------------------------------------------------------------------------------------------------------ all

    def _calm(self) -> list[Effect]:
        self._slow, self._cuts, self._refusals = [], [], []
        for producer in self._connections("*"):
            trouble = producer.trouble
            if trouble is not None:
                trouble.throttle = trouble.refusal_of = None
                trouble.arm(None)
                trouble.thaw()
        return self._resume()

    def _show(self) -> list[Effect]:
        return [*self._persistence(), *self._rules(), *(_shown(producer) for producer in self._connections("*"))]

    def _rules(self) -> list[Effect]:
        return list(self._told_rules())

    def _told_rules(self) -> Iterator[Effect]:
        for name, rate in self._slow:
            yield {"rule": "slow", "name": name, "bytes_per_second": rate}
        for cut in self._cuts:
            yield {"rule": "cut", "name": cut.name}
        for rule in self._refusals:
            yield {"rule": "refuse", "name": rule.name, "status": rule.refusal.status, "left": rule.left}


def _connection(producer: Sender | TapProducer, done: str) -> Effect:
    return {"connection": producer.name, "is": done}


def _shown(producer: Sender | TapProducer) -> Effect:
    trouble = producer.trouble
    is_slow = trouble is not None and trouble.throttle is not None
    is_frozen = trouble is not None and trouble.is_frozen
    is_to_be_cut = trouble is not None and trouble.cut is not None
    return {
        "connection": producer.name,
        "is": ", ".join(
            word for word, holds in (("slow", is_slow), ("frozen", is_frozen), ("to be cut", is_to_be_cut)) if holds
        )
        or "free",
        "streams": len(producer.streams),
    }
