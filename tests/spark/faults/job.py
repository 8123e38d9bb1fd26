"""A query in a process of its own, for tests that kill it or some of what Spark starts: run as a script.

It reads a description as JSON from the first line of its standard input, not from its arguments, which everybody can
see. When the query has begun it prints `running` and where Spark's pages are, and goes on until it is killed, or until
its standard input is closed; then it stops cleanly.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(given: dict[str, object]) -> None:
    """Run the query that was described."""
    from headrace.spark import session  # noqa: PLC0415 - a child of this script may not need it
    from tests.spark.faults.copies import COLUMNS, store  # noqa: PLC0415

    spark = session("job", master=str(given["master"]), conf=given["conf"])  # type: ignore[arg-type]
    folder, keep = Path(str(given["copy"])), str(given["keep"])

    def take(frame: DataFrame, number: int) -> None:
        store(folder, number, frame.select(*COLUMNS).toArrow(), keep=keep)

    if given["explain"]:
        options = given["options"]
        spark.read.format("dcp").options(**options).load().explain("extended")  # type: ignore[arg-type]
    reader = spark.readStream.format("dcp").options(**given["options"])  # type: ignore[arg-type]
    writer = reader.load().writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(given["checkpoint"])).start()
    print("running", spark.sparkContext.uiWebUrl, flush=True)  # noqa: T201 - who started this waits for it
    sys.stdin.read()
    query.stop()
    spark.stop()
    failure = query.exception()
    if failure is not None:
        raise failure


if __name__ == "__main__":
    main(json.loads(sys.stdin.readline()))
