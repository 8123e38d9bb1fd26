"""The golden explanations: what `headrace explain` prints for every entry of the catalogue.

tests/golden/explain/<group>.txt has one section an entry: its id, the command, what that prints. `drawn.txt` holds the
thirteen drawings that contradict themselves, which the command explains as far as they go.
"""

from collections.abc import Iterator
from functools import cache

from headrace.explain import Explained, TextStyle, explain, read_inputs, render_text
from headrace.wire import Dialect
from tests.wire.entries import CLASSES, catalogued, golden
from tests.wire.vectors import TESTS, documents

FOLDER = TESTS / "golden" / "explain"
MARK = "=== "


def section(data: bytes, dialect: Dialect, origin: str) -> str:
    """What the command prints for one message, behind where the message is from and the command itself."""
    shown = [one for one in explain(read_inputs([data.hex()]), dialect) if isinstance(one, Explained)]
    printed = "\n".join(render_text(one, TextStyle(located=False)) for one in shown)
    return f"{origin}\n$ headrace explain --dialect {dialect} {data.hex()}\n{printed}\n"


def fresh() -> Iterator[tuple[str, str, str]]:
    """Group, id and text of every section, as they would be written now."""
    for entry in catalogued(CLASSES):
        sample = golden().get(entry)
        if sample is not None:
            dialect = sample.dialect if entry.group == "answer" else entry.dialect
            yield entry.group, entry.id, section(sample.wire, dialect, sample.origin)
    for vector in documents():
        if vector.error_offset is not None:
            yield "drawn", f"drawn/{vector.id}", section(vector.drawn, vector.dialect, vector.id)


@cache
def sections() -> dict[str, str]:
    """Every section that is kept, by its id."""
    found = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for part in path.read_text().split(MARK)[1:]:
            title, _, text = part.partition("\n")
            found[title] = text.rstrip("\n") + "\n"
    return found
