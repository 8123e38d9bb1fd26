"""docs/reference/spark-options.md: the options of the formats `dcp` and `tap`, from their table."""

from typing import Any

from headrace.spark.options import KINDS, OPTIONS, Option, Use
from tools.reference.markdown import either, page, table

SOURCE = "src/headrace/spark/option_table.py"
_CALLED = {Use.BATCH: "read", Use.STREAM: "stream", Use.WRITE: "write", Use.TAP: "tap"}
_SIZES = (("g", 30), ("m", 20), ("k", 10))


def spark_page() -> str:
    """Every option: its name, its kind, its default, where it may stand, what it does."""
    head = ["option", "kind", "default", "where", "what it does"]
    return page(
        "Options of the formats dcp and tap",
        SOURCE,
        '`spark.read.format("dcp").option("bucket", "travel")`, and so for `spark.readStream`, `df.write` and '
        "`df.writeStream`. Names mind no case. A name that is not here, one that has no meaning where it stands, and a "
        "value that cannot be are errors that say what would do. What Spark's source for Kafka has, too, is called as "
        "it is there.",
        'Where: read is `spark.read.format("dcp")`, stream `spark.readStream.format("dcp")`, write `df.write` and '
        '`df.writeStream` of format `dcp`, tap `spark.read.format("tap")`.',
        table(head, map(_row, OPTIONS)),
        "The columns that a read gives are in [the row of a change](rows.md). How a session is set up: "
        "[a Spark session](../guides/spark-session.md).",
    )


def _row(option: Option) -> list[str]:
    kind = KINDS.get(option.kind) or either([f"`{word}`" for word in option.kind.__name__.split(" or ")])
    where = ", ".join(called for use, called in _CALLED.items() if use in option.uses)
    return [f"`{option.name}`", kind, _default(option, kind), where, option.sentence]


def _default(option: Option, kind: str) -> str:
    value: Any = option.default
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and kind.startswith("bytes"):
        return f"`{_size(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _size(number: int) -> str:
    for letter, bits in _SIZES:
        if number and number % (1 << bits) == 0:
            return f"{number >> bits}{letter}"
    return str(number)
