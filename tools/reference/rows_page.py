"""The row of a change as a page, from the table of its columns."""

from headrace.columns.schema import COLUMNS
from tools.reference.markdown import page, table


def rows_page() -> str:
    """Every column: its name, its Arrow type, what it says."""
    rows = [(f"`{column.name}`", f"`{column.kind}`", column.sentence) for column in COLUMNS]
    return page(
        "The row of a change",
        "src/headrace/columns/schema.py",
        "What `headrace.columns` makes of a mutation, a deletion, an expiration, a flush, a system event or a seqno "
        "advance. A field that the message does not carry is null.",
        "The unsigned 64-bit numbers of the wire (`vbuuid`, `seqno`, `rev`, `cas` and the snapshot's range) are signed "
        "longs with the same bits; `headrace.columns.unsigned` gives the number of the wire back.",
        table(["column", "Arrow type", "what it says"], rows),
    )
