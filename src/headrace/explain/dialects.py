"""Which dialect a conversation is in, judged by its messages.

TAP has opcodes of its own. The draft, UPR and DCP share 0x50-0x65 for different messages: the conversation
is in the dialect in which most of them are free of contradictions. An opcode that a dialect lacks speaks
against it as much as a message without contradictions speaks for it, and more than any number of
contradictions: what a dialect does not know it cannot find wrong. Where that leaves a choice, the newest is
taken. One thing decides at once: a first request that only the draft can mean (0x50 with 40 bytes of extras
is its stream request; 0x51 without extras, before any open, its request for the failover log).
"""

from headrace.explain.headers import has_header
from headrace.wire import Dialect, Header, dissect
from headrace.wire.registry import only_draft

CANDIDATES = (Dialect.DCP, Dialect.UPR, Dialect.UPR_DRAFT)
_TAP_OPCODES = range(0x40, 0x48)
_SHARED_OPCODES = range(0x50, 0x66)


class DialectJudge:
    """Collects evidence from the messages of one conversation."""

    def __init__(self, fixed: Dialect | None = None) -> None:
        self._verdict = fixed
        self._fixed = fixed is not None
        self._fits = dict.fromkeys(CANDIDATES, 0)
        self._unknown = dict.fromkeys(CANDIDATES, 0)
        self._problems = dict.fromkeys(CANDIDATES, 0)
        self._seen = 0
        self._tap_seen = False

    @property
    def decided(self) -> bool:
        """Whether more messages would change nothing."""
        return self._verdict is not None

    def hear(self, data: bytes) -> None:
        """Take one message as evidence."""
        if self.decided or not has_header(data):
            return
        header = Header.parse(data)
        opcode = header.opcode
        self._tap_seen = self._tap_seen or opcode in _TAP_OPCODES
        if opcode not in _SHARED_OPCODES:
            return
        if self._seen == 0 and only_draft(header):
            self._verdict = Dialect.UPR_DRAFT
        self._seen += 1
        for dialect in CANDIDATES:
            found = dissect(data, dialect)
            self._unknown[dialect] += not found.known
            self._fits[dialect] += found.known and not found.problems
            self._problems[dialect] += len(found.problems)

    def decide(self) -> None:
        """Judge by what was heard so far."""
        if self.decided:
            return
        if not self._seen:
            self._verdict = Dialect.TAP if self._tap_seen else Dialect.DCP
        else:
            self._verdict = min(CANDIDATES, key=self._rank)

    def _rank(self, dialect: Dialect) -> tuple[int, int, int]:
        """Order the dialects, the likeliest first; problems are compared only where nothing fits anywhere."""
        fitting, unknown = self._fits[dialect], self._unknown[dialect]
        return unknown - fitting, unknown, 0 if any(self._fits.values()) else self._problems[dialect]

    def dialect_of(self, data: bytes) -> Dialect:
        """Name the dialect in which one message of the conversation is to be read."""
        assert self._verdict is not None, "decide first"
        if not self._fixed and has_header(data) and Header.parse(data).opcode in _TAP_OPCODES:
            return Dialect.TAP
        return self._verdict
