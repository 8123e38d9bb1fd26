"""The troubles that a node can be told to make, for people who test consumers: one table of names and arguments.

The node reads what it is told by this table, the command line and the reference pages are made of it, and
`headrace.testing` checks against it before anything is sent. A fault travels as a parameter `chaos_NAME` whose value is
a JSON object of its arguments. Nothing here makes trouble.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headrace.errors import LocalProtocolError
from headrace.history.snapshots import SEQNO_MAX
from headrace.wire.codes import Status, StreamEndReason

if TYPE_CHECKING:
    from collections.abc import Mapping

PARAMETER_PREFIX = "chaos_"
"""What the names of parameters begin with that are faults."""

ALL = "all"
"""Every vbucket."""

_VBUCKET_MAX = 0xFFFF
_STATUS_MAX = 0xFFFF
_REASON_MAX = 0xFFFF_FFFF
_BYTES_MAX = 1 << 40
_COUNT_MAX = 1 << 32
_NAME_CHARACTERS_MAX = 256


class Kind(Enum):
    """What an argument may be."""

    NUMBER = "a whole number"
    FLAG = "true or false"
    NAMES = "a name, in which * and ? stand for any characters"
    VBUCKETS = "numbers of vbuckets, as in 0,4-7, or all"
    STATUS = "a status, by its number or its name"
    REASON = "a reason, by its number or its name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a fault. Without a default it must be given."""

    name: str
    kind: Kind
    sentence: str
    default: Any = None
    is_needed: bool = False
    least: int = 0
    most: int = SEQNO_MAX

    def check(self, given: object) -> Any:
        """Give the value as the node uses it, or refuse it."""
        read = _READERS[self.kind]
        value = read(self, given)
        if value is None:
            raise LocalProtocolError(f"{self.name} is {self._wanted()}, not {given!r}")
        return value

    def _wanted(self) -> str:
        if self.kind is not Kind.NUMBER:
            return str(self.kind.value)
        return f"{self.kind.value} from {self.least} to {self.most}"


def _number(argument: Argument, given: object) -> int | None:
    if isinstance(given, bool) or not isinstance(given, int) or not argument.least <= given <= argument.most:
        return None
    return given


def _flag(argument: Argument, given: object) -> bool | None:
    del argument
    return given if isinstance(given, bool) else None


def _names(argument: Argument, given: object) -> str | None:
    del argument
    return given if isinstance(given, str) and 0 < len(given) <= _NAME_CHARACTERS_MAX else None


def _vbuckets(argument: Argument, given: object) -> tuple[int, ...] | str | None:
    """Numbers in ascending order, each once."""
    if given == ALL:
        return ALL
    given = [given] if isinstance(given, int) else given
    if isinstance(given, str):
        given = _ranges(given)
    if not isinstance(given, list | tuple) or not given or not all(_is_vbucket(one) for one in given):
        return None
    del argument
    return tuple(sorted(set(given)))


def _is_vbucket(one: object) -> bool:
    return isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= _VBUCKET_MAX


def _ranges(text: str) -> list[int] | None:
    """The numbers of `0,4-7`; None where there is something else."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not all(end.isascii() and end.isdigit() and int(end) <= _VBUCKET_MAX for end in (first, last)):
            return None
        found.extend(range(int(first), int(last) + 1))
    return found


def _code(codes: type[IntEnum], given: object) -> int | None:
    """A number, or the number of a name, however its words are joined."""
    if isinstance(given, str):
        text = given.strip()
        if text.upper().replace("-", "_").replace(" ", "_") in codes.__members__:
            return int(codes[text.upper().replace("-", "_").replace(" ", "_")])
        try:
            given = int(text, 0)
        except ValueError:
            return None
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _status(argument: Argument, given: object) -> int | None:
    del argument
    found = _code(Status, given)
    return found if found is not None and 0 < found <= _STATUS_MAX else None


def _reason(argument: Argument, given: object) -> int | None:
    del argument
    found = _code(StreamEndReason, given)
    return found if found is not None and 0 <= found <= _REASON_MAX else None


_READERS = {
    Kind.NUMBER: _number,
    Kind.FLAG: _flag,
    Kind.NAMES: _names,
    Kind.VBUCKETS: _vbuckets,
    Kind.STATUS: _status,
    Kind.REASON: _reason,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One trouble: what it is called, what it does, what a right consumer does then, and what it takes."""

    name: str
    sentence: str
    details: str
    consumer: str
    arguments: tuple[Argument, ...] = ()

    @property
    def parameter(self) -> str:
        """The name of the parameter that asks for it."""
        return PARAMETER_PREFIX + self.name

    def read(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Give every argument, with the defaults of those that are not given; refuse what is wrong or not known."""
        known = {argument.name for argument in self.arguments}
        for name in given:
            if name not in known:
                takes = ", ".join(argument.name for argument in self.arguments) or "nothing"
                raise LocalProtocolError(f"{self.name} takes no {name}: it takes {takes}")
        values: dict[str, Any] = {}
        for argument in self.arguments:
            value = given.get(argument.name, argument.default)
            if value is None and argument.is_needed:
                raise LocalProtocolError(f"{self.name} needs {argument.name}: {argument.sentence}")
            values[argument.name] = None if value is None else argument.check(value)
        return values


_WHICH = Argument(
    name="vbuckets",
    kind=Kind.VBUCKETS,
    sentence="the vbuckets, as in 0,4-7, or all",
    is_needed=True,
)
_WHICH_OF_ALL = Argument(
    name="vbuckets",
    kind=Kind.VBUCKETS,
    sentence="the vbuckets, as in 0,4-7",
    default=ALL,
)
_NAMED = Argument(
    name="name",
    kind=Kind.NAMES,
    sentence="only DCP connections with such a name; * and ? stand for any characters",
    default="*",
)

_FAULTS = (
    Fault(
        name="failover",
        sentence="Fail vbuckets over: their last changes are lost, and a new branch of history begins.",
        details="As when a replica that lagged behind is promoted. Streams of the vbucket end with the reason state "
        "changed. It becomes active, if it was not. Exactly `lost` changes go where that is a state that the vbucket "
        "had, and else the fewest that are more; the answer tells how many. With 0 nothing is lost, and the branch is "
        "new all the same.",
        consumer="asks again with its position, is told to roll back if it saw what was lost, undoes it, and goes on",
        arguments=(
            _WHICH,
            Argument(name="lost", kind=Kind.NUMBER, sentence="how many changes are lost", default=0),
        ),
    ),
    Fault(
        name="rollback",
        sentence="Roll vbuckets back to a seqno, as a replica does whose producer tells it to.",
        details="The state stays: a replica keeps its branch, and its producer may send the changes again; an active "
        "vbucket gets a new branch, since other changes will have these seqnos. Streams of the vbucket end with the "
        "reason state changed. It goes back to the newest state that it had at the seqno or before it.",
        consumer="does the same as after a failover",
        arguments=(
            _WHICH,
            Argument(name="to", kind=Kind.NUMBER, sentence="the seqno to go back to; 0 loses all", is_needed=True),
        ),
    ),
    Fault(
        name="pause",
        sentence="Pause persistence: changes are acknowledged and streamed, and stay in memory.",
        details="The whole bucket. A crash loses them; OBSERVE_SEQNO tells that they are not on disk.",
        consumer="that mitigates rollbacks holds back what is not on disk; others see nothing",
    ),
    Fault(
        name="resume",
        sentence="Resume persistence, and bring to disk what waits.",
        details="",
        consumer="that held changes back lets them go",
    ),
    Fault(
        name="purge",
        sentence="Purge tombstones: who was away does not learn of the deletions any more.",
        details="What is in memory goes to disk first, unless persistence is paused.",
        consumer="whose position is older than a purged deletion is told to roll back to 0, and begins anew",
        arguments=(
            _WHICH_OF_ALL,
            Argument(
                name="older_than_s",
                kind=Kind.NUMBER,
                sentence="only tombstones that are so many seconds old; 0 is all",
                default=0,
                most=0xFFFF_FFFF,
            ),
        ),
    ),
    Fault(
        name="slow",
        sentence="Slow streams down to so many bytes a second, each connection for itself.",
        details="Connections that are open and those that come, until calm. What waits is bounded: it stays on disk.",
        consumer="waits, and does not take the connection for dead as long as something comes",
        arguments=(
            Argument(
                name="bytes_per_second",
                kind=Kind.NUMBER,
                sentence="the rate",
                is_needed=True,
                least=1,
                most=_BYTES_MAX,
            ),
            _NAMED,
        ),
    ),
    Fault(
        name="cut",
        sentence="Cut connections: now, or after so many more messages or bytes, in the middle of a message too.",
        details="All messages count that the node sends on the connection. Bytes are exact, wherever that falls.",
        consumer="drops half a message, connects again, and goes on from its last position",
        arguments=(
            _NAMED,
            Argument(
                name="after_messages",
                kind=Kind.NUMBER,
                sentence="cut after so many more messages",
                most=_COUNT_MAX,
            ),
            Argument(
                name="after_bytes",
                kind=Kind.NUMBER,
                sentence="cut after so many more bytes",
                most=_BYTES_MAX,
            ),
            Argument(
                name="mid_message",
                kind=Kind.FLAG,
                sentence="send half of the next message, then cut",
                default=False,
            ),
            Argument(
                name="again",
                kind=Kind.FLAG,
                sentence="do the same to every connection that comes, until calm",
                default=False,
            ),
        ),
    ),
    Fault(
        name="end",
        sentence="End streams with a reason of your choice; the connections stay.",
        details="",
        consumer="asks for the stream again, here or elsewhere, as the reason says; ok means that all was sent",
        arguments=(
            _WHICH_OF_ALL,
            _NAMED,
            Argument(
                name="reason",
                kind=Kind.REASON,
                sentence="why: state_changed, closed, too_slow, disconnected …, or a number",
                default="state_changed",
            ),
        ),
    ),
    Fault(
        name="refuse",
        sentence="Refuse the next stream requests with a status of your choice.",
        details="With the status rollback (0x23) the answer has `seqno`.",
        consumer="tries again after a while (temporary_failure), looks for another node (not_my_vbucket), or rolls "
        "back (rollback), and does not ask without a pause",
        arguments=(
            Argument(
                name="status",
                kind=Kind.STATUS,
                sentence="with what: temporary_failure, not_my_vbucket, rollback …, or a number",
                default="temporary_failure",
            ),
            Argument(name="count", kind=Kind.NUMBER, sentence="how many", default=1, least=1, most=_COUNT_MAX),
            Argument(name="seqno", kind=Kind.NUMBER, sentence="where to roll back to, with 0x23", default=0),
            _WHICH_OF_ALL,
            _NAMED,
        ),
    ),
    Fault(
        name="freeze",
        sentence="Freeze connections: they stay open, and nothing more comes, no noop and no answer.",
        details="What would be sent is kept until thaw. Requests for items are still answered.",
        consumer="notices the silence, once its noop interval is over, and connects again",
        arguments=(_NAMED,),
    ),
    Fault(
        name="thaw",
        sentence="Thaw frozen connections: what was held back goes out.",
        details="",
        consumer="that waited goes on as if nothing had been",
        arguments=(_NAMED,),
    ),
    Fault(
        name="calm",
        sentence="Make no more trouble: streams run free, nothing is refused, persistence goes on.",
        details="What was lost stays lost.",
        consumer="has everything after a while",
    ),
    Fault(
        name="show",
        sentence="Show which troubles are in force, and which connections there are to trouble.",
        details="",
        consumer="sees nothing of it",
    ),
    Fault(
        name="crash",
        sentence="Kill the node's process: SIGKILL, no goodbye.",
        details="Whoever started it starts it again. What was not on disk is lost; vbuckets that may have lost "
        "something get a new branch. A node inside a Python program refuses: it would take the program with it.",
        consumer="connects again when the node is back, and does the same as after a failover",
    ),
)

FAULTS: Mapping[str, Fault] = MappingProxyType({fault.name: fault for fault in _FAULTS})
"""Every fault, by its name."""


def fault_of(parameter: str) -> Fault | None:
    """The fault that a parameter asks for; None for another parameter."""
    if not parameter.startswith(PARAMETER_PREFIX):
        return None
    return FAULTS.get(parameter.removeprefix(PARAMETER_PREFIX))
