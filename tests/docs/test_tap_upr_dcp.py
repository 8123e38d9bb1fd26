import pytest

from headrace.wire import Dialect, Message
from tests.docs.shown import ROOT
from tools.reference.dialect_pages import ENTRIES
from tools.reference.messages import page_of

PAGE = (ROOT / "docs" / "concepts" / "tap-upr-dcp.md").read_text()
STREAMS = [
    (cls, dialect) for cls in ENTRIES for dialect in sorted(cls.spec.opcodes) if page_of(cls.spec, dialect) != "kv.md"
]


@pytest.mark.parametrize(("cls", "dialect"), STREAMS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_every_message_of_a_stream_is_compared(cls: type[Message], dialect: Dialect):
    """The page that sets the dialects side by side leaves no message out, and links each number to its message."""
    opcode = f"0x{cls.spec.opcodes[dialect]:02x}"
    assert f"[{opcode}](../protocol/{page_of(cls.spec, dialect)}#{opcode}-" in PAGE
