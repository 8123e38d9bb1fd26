"""From pieces of conversations to explained messages, in the order in which they were completed.

Which dialect a conversation is in may show only after some of its messages, while others must not overtake
them in the output. So messages wait in one queue until the conversation at its head is decided: by enough
evidence, by its end, or because too much waits.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from headrace.explain.cutter import Cut, Cutter
from headrace.explain.dialects import DialectJudge
from headrace.explain.events import Comment, Direction, Ended, Events, Fault, Note, Piece
from headrace.explain.headers import has_header
from headrace.explain.limits import HELD_BYTES_MAX, HELD_MESSAGES_MAX, JUDGED_MESSAGES_MAX
from headrace.wire import Dialect, Dissection, Problem, dissect

UNREADABLE = "unreadable"
"""The message name of a stretch of bytes in which there is no message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A message with its fields, and where it was found. Without a dissection: bytes that are no message."""

    dialect: str
    dissection: Dissection | None
    data: bytes
    problems: tuple[Problem, ...]
    connection: str
    direction: Direction
    origin: str

    @property
    def message(self) -> str:
        """The name of the message in the catalogue."""
        return self.dissection.message if self.dissection else UNREADABLE


Shown: TypeAlias = Explained | Comment | Note | Fault


class _Conversation:
    def __init__(self, name: str, dialect: Dialect | None) -> None:
        self.name = name
        self.cutters: dict[Direction, Cutter] = {}
        self.judge = DialectJudge(dialect)
        self.heard = 0

    def cutter(self, direction: Direction) -> Cutter:
        return self.cutters.setdefault(direction, Cutter())


_Waiting: TypeAlias = Comment | Note | Fault | tuple[_Conversation, Direction, Cut]


def explain(events: Events, dialect: Dialect | None = None) -> Iterator[Shown]:
    """Explain every message of an input; `dialect` None means: find it out for each conversation."""
    return _Queue(dialect).run(events)


class _Queue:
    def __init__(self, dialect: Dialect | None) -> None:
        self._dialect = dialect
        self._conversations: dict[str, _Conversation] = {}
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0

    def run(self, events: Events) -> Iterator[Shown]:
        for event in events:
            if isinstance(event, Piece):
                conversation = self._conversation(event.conversation)
                self._hold(conversation, event.direction, conversation.cutter(event.direction).feed(event))
            elif isinstance(event, Ended):
                self._end(event.conversation)
            else:
                self._waiting.append(event)
            yield from self._ready()
        for name in list(self._conversations):
            self._end(name)
        yield from self._ready()

    def _conversation(self, name: str) -> _Conversation:
        found = self._conversations.get(name)
        if found is None:
            found = self._conversations[name] = _Conversation(name, self._dialect)
        return found

    def _hold(self, conversation: _Conversation, direction: Direction, cuts: Iterator[Cut]) -> None:
        for cut in cuts:
            if cut.readable:
                conversation.judge.hear(cut.data)
                conversation.heard += 1
                if conversation.heard == JUDGED_MESSAGES_MAX:
                    conversation.judge.decide()
            self._waiting.append((conversation, direction, cut))
            self._waiting_bytes += len(cut.data)

    def _end(self, name: str) -> None:
        conversation = self._conversations.pop(name, None)
        if conversation is None:
            return
        for direction, cutter in conversation.cutters.items():
            self._hold(conversation, direction, cutter.finish())
        conversation.judge.decide()

    def _ready(self) -> Iterator[Shown]:
        while self._waiting:
            head = self._waiting[0]
            if isinstance(head, tuple):
                conversation, direction, cut = head
                if self._waiting_bytes > HELD_BYTES_MAX or len(self._waiting) > HELD_MESSAGES_MAX:
                    conversation.judge.decide()
                if not conversation.judge.decided:
                    return
                self._waiting_bytes -= len(cut.data)
                yield _explain_cut(conversation, direction, cut)
            else:
                yield head
            self._waiting.popleft()


def _explain_cut(conversation: _Conversation, direction: Direction, cut: Cut) -> Explained:
    dialect = conversation.judge.dialect_of(cut.data)
    found = dissect(cut.data, dialect) if cut.readable else None
    problems = found.problems if found else ()
    dissection = found if has_header(cut.data) else None
    if cut.note:
        problems = (*problems, Problem(offset=len(cut.data) if dissection else 0, text=cut.note))
    return Explained(
        dialect=dissection.dialect if dissection else str(dialect),
        dissection=dissection,
        data=cut.data,
        problems=problems,
        connection=conversation.name,
        direction=direction,
        origin=cut.origin,
    )
