"""What a terminal shows when something is wrong: a sentence, and no stack trace before the program knows of it."""

import re
from pathlib import Path

import pytest

from tests.client.servers import free_port
from tests.spark.test_session import run

PROGRAM = """
import sys
from headrace.spark import session
from headrace.testing import LiveNode

folder, port = sys.argv[1:]
spark = session(master="local[2]", conf={"spark.driver.memory": "1g", "spark.ui.enabled": False})

def batch(**options):
    spark.read.format("dcp").options(**options).load().count()

def stream(**options):
    rows = spark.readStream.format("dcp").options(**options).load()
    rows.writeStream.format("noop").option("checkpointLocation", f"{folder}/{name}").start().awaitTermination(60)

def write(**options):
    rows = spark.sql("select repeat('k', 251) key, 1 n")
    rows.write.format("dcp").options(**options).mode("append").save()

with LiveNode(vbuckets=2) as node:
    node.items.set(b"\\xff\\xfe", b"x")
    here, nowhere = node.connection_string, f"couchbase://127.0.0.1:{port}"
    for name, work, options in [
        ("option of a batch", batch, {"connection": here, "colections": "x"}),
        ("option of a stream", stream, {"connection": here, "colections": "x"}),
        ("host of a stream", stream, {"connection": nowhere}),
        ("task of a batch", batch, {"connection": here}),
        ("task of a stream", stream, {"connection": here}),
        ("task of a write", write, {"connection": here}),
    ]:
        print("=====", name, file=sys.stderr, flush=True)
        try:
            work(**options)
        except Exception as error:
            print("=====", name, str(error), sep="\\n", flush=True)
"""

TRACE = re.compile(r'^\s+at \S+\(.*\)|^\s+\.\.\. \d+ more|Traceback|^\s+File "', re.MULTILINE)


def parts(text: str) -> dict[str, str]:
    """What was printed, by what it was printed of."""
    found = re.split(r"^===== ?\n?(.+)\n", text, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


@pytest.mark.slow
def test_nothing_stands_before_the_sentence(spark_command_env: dict[str, str], tmp_path: Path):
    """Spark logs no stack trace of what a program then catches, and what it logs of a stream has the sentence."""
    port = free_port()
    done = run(PROGRAM, spark_command_env, str(tmp_path), str(port))
    sentences = {
        "option of a batch": "there is no option colections: did you mean collections?",
        "option of a stream": "there is no option colections: did you mean collections?",
        "host of a stream": f"127.0.0.1:{port}: cannot connect: Connection refused",
        "task of a batch": "is not UTF-8; read it with keys=binary",
        "task of a stream": "is not UTF-8; read it with keys=binary",
        "task of a write": "a key has 1 to 250 bytes, not 251",
    }
    told, shown = parts(done.stdout), parts(done.stderr)
    assert [*told] == [*shown] == [*sentences], done.stderr
    for name, sentence in sentences.items():
        assert sentence in told[name]
        assert not TRACE.search(shown[name]), shown[name]
        assert name == "option of a batch" or sentence in shown[name]  # that one reaches nobody but the program
