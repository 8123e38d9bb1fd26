"""Which dialect a conversation is in, judged by its messages.

TAP has opcodes of its own. The draft, UPR and DCP share 0x50-0x65 for different messages: the conversation
is in the dialect in which most of them are free of contradictions; where that leaves a choice, the newest
is taken. One thing decides at once: a first request that only the draft can mean (0x50 with 40 bytes of
extras is its stream request; 0x51 without extras, before any open, its request for the failover log).
"""

from headrace.wire import Dialect, Header, dissect, fits
from headrace.wire.codes import Magic
from headrace.wire.limits import HEADER_BYTES

CANDIDATES = (Dialect.DCP, Dialect.UPR, Dialect.UPR_DRAFT)
_TAP_OPCODES = range(0x40, 0x48)
_SHARED_OPCODES = range(0x50, 0x66)
_DRAFT_STREAM, _DRAFT_LOG, _DRAFT_STREAM_EXTRAS = 0x50, 0x51, 40


class DialectJudge:
    """Collects evidence from the messages of one conversation."""

    def __init__(self, fixed: Dialect | None = None) -> None:
        self._verdict = fixed
        self._fixed = fixed is not None
        self._fits = dict.fromkeys(CANDIDATES, 0)
        self._problems = dict.fromkeys(CANDIDATES, 0)
        self._seen = 0
        self._tap_seen = False

    @property
    def decided(self) -> bool:
        """Whether more messages would change nothing."""
        return self._verdict is not None

    def hear(self, data: bytes) -> None:
        """Take one message as evidence."""
        if self.decided or len(data) < HEADER_BYTES:
            return
        header = Header.parse(data)
        opcode = header.opcode
        self._tap_seen = self._tap_seen or opcode in _TAP_OPCODES
        if opcode not in _SHARED_OPCODES:
            return
        if self._seen == 0 and _only_draft(header):
            self._verdict = Dialect.UPR_DRAFT
        self._seen += 1
        for dialect in CANDIDATES:
            if fits(data, dialect):
                self._fits[dialect] += 1
            elif not any(self._fits.values()):  # problems count only as long as nothing fits anywhere
                self._problems[dialect] += len(dissect(data, dialect).problems)

    def decide(self) -> None:
        """Judge by what was heard so far."""
        if self.decided:
            return
        if not self._seen:
            self._verdict = Dialect.TAP if self._tap_seen else Dialect.DCP
        elif any(self._fits.values()):
            self._verdict = max(CANDIDATES, key=self._fits.__getitem__)
        else:
            self._verdict = min(CANDIDATES, key=self._problems.__getitem__)

    def dialect_of(self, data: bytes) -> Dialect:
        """Name the dialect in which one message of the conversation is to be read."""
        assert self._verdict is not None, "decide first"
        if not self._fixed and len(data) >= HEADER_BYTES and Header.parse(data).opcode in _TAP_OPCODES:
            return Dialect.TAP
        return self._verdict


def _only_draft(header: Header) -> bool:
    if header.magic != Magic.REQUEST:
        return False
    return (header.opcode, header.extras_length) in ((_DRAFT_STREAM, _DRAFT_STREAM_EXTRAS), (_DRAFT_LOG, 0))
