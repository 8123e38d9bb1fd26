"""A query in a process of its own, for tests that kill it or some of what Spark starts: run as a script.

It reads a description as JSON from the first line of its standard input, not from its arguments, which everybody can
see. When the query has begun it prints `running` and where Spark's pages are, and goes on until it is killed, or until
its standard input is closed; then it stops cleanly.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def main(given: dict[str, object]) -> None:
    """Run the query that was described."""
    from headrace.spark import session  # noqa: PLC0415 - a child of this script may not need it
    from tests.spark.faults.copies import COLUMNS, store  # noqa: PLC0415

    spark = session("job", master=str(given["master"]), conf=given["conf"])  # type: ignore[arg-type]
    folder, keep = Path(str(given["copy"])), str(given["keep"])

    def take(frame: DataFrame, number: int) -> None:
        store(folder, number, frame.select(*COLUMNS).toArrow(), keep=keep)

    if given["wrong"] is not None:
        _go_through(spark, given["options"], given["wrong"], str(given["checkpoint"]))  # type: ignore[arg-type]
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


def _go_through(spark: SparkSession, options: dict[str, str], wrong: dict[str, str], checkpoint: str) -> None:
    """Plan a read, write a document, and let a query and a read fail: what may show an option shows it."""
    spark.read.format("dcp").options(**options).load().explain("extended")
    rows = spark.sql("select 'written' as key, 1 as n")
    rows.write.format("dcp").options(**options).mode("append").save()
    changes = spark.readStream.format("dcp").options(**wrong).load()
    query = changes.writeStream.format("noop").option("checkpointLocation", f"{checkpoint}-wrong").start()
    with suppress(Exception):
        query.awaitTermination(60)
    print(query.exception())  # noqa: T201 - the test searches it
    try:
        spark.read.format("dcp").options(**wrong).load().count()
    except Exception as error:  # noqa: BLE001
        print(error)  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.stdin.readline()))
