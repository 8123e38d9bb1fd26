"""docs/reference/differences.md: where a node does other than the servers whose traffic was captured."""

from tests.replay.differences import DIFFERENCES, Difference
from tools.reference.markdown import bullets, page, table

SOURCE = "tests/replay/differences.py"
INTRODUCTION = """
Traffic of Couchbase Server 4.1.2 and 3.0.3 is in `tests/captures`. The tests in `tests/replay` play each of its
scenarios against a node: the client's messages are sent again, and the node's are compared with the server's, in
order, with their lengths, statuses, opaques, vbuckets, seqnos and contents. What differs on purpose is in the table
below, and nothing else is let through. A row that no longer has anything to excuse fails the tests too.
"""
NOT_COMPARED = (
    "CAS values, and times",
    "vb UUIDs by themselves: where a server says one twice, so must the node",
    "opaques that a server chooses: they may be others, and are echoed",
    (
        "how live changes are grouped into snapshots, which differs between two runs of one server; but each change "
        "lies within the marker before it, and an older version of a key is left out only where a newer one follows"
    ),
    "when a consumer acknowledges by its clock; but after a fifth of its buffer it must, and never more than it got",
)


def differences_page() -> str:
    """The table, and what is not compared."""
    rows = [_row(row) for row in DIFFERENCES]
    return page(
        "Differences from the captured servers",
        SOURCE,
        INTRODUCTION,
        table(["", "servers", "headrace", "why", "seen in"], rows),
        "## What is not compared",
        bullets(NOT_COMPARED),
    )


def _row(row: Difference) -> tuple[str, ...]:
    return (row.id, _sentence(row.servers), _sentence(row.ours), row.why, ", ".join(f"`{one}`" for one in row.seen_in))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
