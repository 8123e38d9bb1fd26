"""`headrace run`: jobs on Spark that go on until they are stopped. `materialize` keeps a table equal to a bucket."""

import json
import logging
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connect import (
    BucketOption,
    CommandError,
    PasswordEnvOption,
    PasswordFileOption,
    Target,
    TimeoutOption,
    TlsCaOption,
    UsernameOption,
    exits,
    put,
)
from headrace.cli.explain import EXIT_FINE, EXIT_INTERRUPTED
from headrace.cli.items import FormatOption, epilog
from headrace.cli.output import OutputFormat, say
from headrace.cli.pair import StatusLine, Stopping
from headrace.cli.tail import EXIT_TERMINATED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.client import ChangeOptions
    from headrace.pipelines.materialize import Progress

EXAMPLES = (
    "headrace run materialize --from couchbase://127.0.0.1 --to delta:./travel --once",
    "headrace run materialize --from couchbase://127.0.0.1 --to parquet:./changes --once --output json",
)
"""Commands that run as they stand, where a node listens at the default address and there is a Java."""

EPILOG = (
    epilog(EXAMPLES)
    + "\n  headrace run materialize --from couchbases://db.example.com --bucket travel --username ann \\"
    + "\n    --password-env ANN --to delta:/data/travel --every 10s"
)

TELL_S = 1.0
_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
QUIET = "off"
_LEVELS = (QUIET, "error", "warn", "info", "debug")

run = typer.Typer(
    help="Run a job on Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@run.callback()
def jobs() -> None:
    """Run a job on Spark."""


@run.command(epilog=EPILOG)
def materialize(  # noqa: PLR0913 - each option is a parameter
    *,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="ADDRESS",
            help="The servers to ask first: couchbase://host1,host2:port, couchbases:// for TLS.",
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TABLE", help="delta:PATH for a table of the items, parquet:PATH for a log of all changes."
        ),
    ],
    bucket: BucketOption = "default",
    username: UsernameOption = None,
    password_env: PasswordEnvOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
    timeout_s: TimeoutOption = 10.0,
    collection: Annotated[
        list[str] | None,
        typer.Option(
            "--collection",
            metavar="SCOPE.NAME",
            help="Only these collections; may be given again; * for all. Without it, what is in none of them.",
        ),
    ] = None,
    keys: Annotated[
        str, typer.Option("--keys", metavar="text|binary", help="What keys are in the table; text refuses others.")
    ] = "text",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FOLDER",
            help="Where Spark keeps how far it is; by default beside the table: PATH.checkpoint.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when what was there at the start is in the table.")] = False,
    every: Annotated[
        str,
        typer.Option("--every", metavar="TIME", help="How long from one commit to the next at least: 500ms, 10s, 5m."),
    ] = "1s",
    max_changes: Annotated[
        int, typer.Option("--max-changes", metavar="N", min=1, help="How many changes a commit takes at most.")
    ] = 200_000,
    max_bytes: Annotated[
        str, typer.Option("--max-bytes", metavar="SIZE", help="How many bytes a commit takes at most, about: 64m, 1g.")
    ] = "128m",
    history: Annotated[
        str, typer.Option("--history", metavar="TIME", help="How long old versions of a Delta table stay readable.")
    ] = "10m",
    master: Annotated[
        str | None,
        typer.Option(
            "--master", metavar="URL", help="Where Spark runs, as local[2] or spark://host:7077; else all cores here."
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be given again."),
    ] = None,
    spark_log: Annotated[
        str, typer.Option("--spark-log", metavar="LEVEL", help=f"What Spark itself may say: {', '.join(_LEVELS)}.")
    ] = "off",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Keep a table equal to a bucket: a Delta table of its items, or a log of its changes as Parquet files.

    A Delta table has a row for each item. Each micro-batch is one commit, made once, whatever is killed and started
    again in between; changes that a failover takes back are undone in the commit that follows it. A log only grows, by
    a file for each micro-batch, with every row as it came.

    The checkpoint belongs to the table. Without one the bucket is read from its beginning, and a Delta table that is
    there already is begun anew.

    The exit code is 0 at the end of --once, 1 when the server refuses, 2 for a wrong option or path or when Spark
    fails, 69 when no server answers, 130 after Ctrl-C and 143 after SIGTERM.
    """
    target = Target(
        connect=from_,
        bucket=bucket,
        username=username,
        password_env=password_env,
        password_file=password_file,
        tls_ca=tls_ca,
        timeout_s=timeout_s,
    )
    with exits("run materialize"):
        asked = _Asked(
            target,
            collection=collection,
            keys=_one_of("--keys", keys, ("text", "binary")),
            max_changes=max_changes,
            max_bytes=_size("--max-bytes", max_bytes),
        )
        job = _Materialize(
            asked,
            to,
            checkpoint,
            once=once,
            every_s=_duration("--every", every),
            history_s=_duration("--history", history),
        )
        level = _one_of("--spark-log", spark_log.lower(), _LEVELS)
        code = job.run(master, _settings(conf or []), level, output)
    raise typer.Exit(code)


class _Asked:
    """What is to be read, in the words of the client and in those of Spark's source."""

    def __init__(
        self, target: Target, *, collection: list[str] | None, keys: str, max_changes: int, max_bytes: int
    ) -> None:
        if target.tls_ca is not None and not target.connect.startswith("couchbases://"):
            raise CommandError("--tls-ca needs a couchbases:// address")
        self._target = target
        self._password = target.password()
        self._collections = collection
        self._max_changes, self._max_bytes = max_changes, max_bytes
        self.keys = keys

    def client_options(self) -> "ChangeOptions":
        from headrace.client import ChangeOptions  # noqa: PLC0415 - explain needs none of it

        target = self._target
        return ChangeOptions(
            connection=target.connect,
            bucket=target.bucket,
            username=target.username,
            password=self._password,
            tls_ca=None if target.tls_ca is None else str(target.tls_ca.absolute()),
            timeout_s=target.timeout_s,
            name="headrace-materialize",
            collections=() if self._collections == ["*"] else tuple(self._collections) if self._collections else None,
        )

    def settings(self) -> dict[str, str]:
        """Settings of Spark. A micro-batch is in its driver's memory several times over; nobody waits for its pages."""
        return {"spark.driver.memory": f"{1024 + 4 * (self._max_bytes >> 20)}m", "spark.ui.enabled": "false"}

    def source_options(self) -> dict[str, str]:
        """The options of the format `dcp`; the password goes as where it is, if that is told."""
        target = self._target
        found = {
            "maxOffsetsPerTrigger": str(self._max_changes),
            "maxBytesPerTrigger": str(self._max_bytes),
            "connection": target.connect,
            "bucket": target.bucket,
            "timeout": str(target.timeout_s),
            "keys": self.keys,
        }
        if target.tls_ca is not None:
            found["tlsCa"] = str(target.tls_ca.absolute())
        if self._collections:
            found["collections"] = ",".join(self._collections)
        if target.username is not None:
            found["username"] = target.username
            if target.password_env is not None:
                found["passwordEnv"] = target.password_env
            elif target.password_file is not None:
                found["passwordFile"] = str(target.password_file.absolute())
            else:
                found["password"] = self._password or ""
        return found


@contextmanager
def _spark_says(spark: "SparkSession", level: str) -> Iterator[None]:
    """Let Spark say no more than is asked for, and stop it at the end.

    Its Python side logs each error with a stack trace, before the error is told; its workers' parent prints one when
    Spark stops while a worker starts; and it cannot be stopped when its Java process is gone.
    """
    spark.sparkContext.setLogLevel(level)
    if level == QUIET:
        logging.disable()
        _hush(spark)
    try:
        yield
    finally:
        with suppress(Exception):
            spark.stop()
        logging.disable(logging.NOTSET)


def _hush(spark: "SparkSession") -> None:
    """Let nobody hear what workers print: Java passes it on to the stream that it has for errors when they start."""
    java: Any = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no other way to Java
    java.java.lang.System.setErr(java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream()))


class _Materialize:
    """One run of the command."""

    def __init__(
        self, asked: _Asked, to: str, checkpoint: Path | None, *, once: bool, every_s: float, history_s: float
    ) -> None:
        from headrace.pipelines.tables import Place  # noqa: PLC0415 - explain needs none of it

        self._asked = asked
        self._place = Place.parse(to)
        self._checkpoint = Path(checkpoint or f"{self._place.path.rstrip('/')}.checkpoint").absolute()
        self._once, self._every_s, self._history_s = once, every_s, history_s
        self._line = StatusLine()
        self._told_at, self._told_rows = time.monotonic(), 0
        self._told: tuple[int, int | None] = (0, None)

    def run(self, master: str | None, conf: dict[str, str], level: str, output: OutputFormat) -> int:
        from headrace.client.scout import Scout  # noqa: PLC0415 - explain needs none of it
        from headrace.pipelines.materialize import Materialization, held, open_target  # noqa: PLC0415
        from headrace.spark import session  # noqa: PLC0415

        with Stopping() as early:
            # What can be told without Spark is told before it takes its seconds to start.
            with Scout(self._asked.client_options()) as scout:
                scout.sightings()
            table = open_target(self._place, keys=self._asked.keys, history_s=int(self._history_s))
            with held(self._checkpoint):
                pass
            spark = session("headrace materialize", master=master, conf={**self._asked.settings(), **conf})
            job = Materialization(spark, self._asked.source_options(), table, self._checkpoint)
            with _spark_says(spark, level), Stopping() as stop:  # pyspark takes Ctrl-C for itself when it starts
                wanted = early.wanted
                try:
                    if wanted is None:
                        job.run(
                            stop, once=self._once, every_s=self._every_s, tell=lambda found: self._tell(found, output)
                        )
                        wanted = stop.wanted
                finally:
                    self._line.clear()
        self._sum_up(job.progress, output)
        if wanted is None:
            return EXIT_FINE
        return EXIT_TERMINATED if wanted == signal.SIGTERM else EXIT_INTERRUPTED

    def _tell(self, progress: "Progress", output: OutputFormat) -> None:
        now = time.monotonic()
        if now < self._told_at + TELL_S:
            return
        rate = (progress.rows - self._told_rows) / (now - self._told_at)
        told, self._told = self._told, (progress.batches, progress.lag)
        self._told_at, self._told_rows = now, progress.rows
        if output is OutputFormat.JSON:
            if told != self._told:
                put(json.dumps({"event": "progress", **_numbers(progress), "rows_per_s": round(rate)}).encode() + b"\n")
            return
        lag = "" if progress.lag is None else f", {progress.lag} behind"
        back = f", {progress.rollbacks} vbuckets rolled back" if progress.rollbacks else ""
        self._line.show(f"{progress.rows} changes in {progress.commits} commits, {rate:.0f}/s{lag}{back}")

    def _sum_up(self, progress: "Progress", output: OutputFormat) -> None:
        if output is OutputFormat.JSON:
            told = {"event": "ended", "to": str(self._place), "checkpoint": str(self._checkpoint), **_numbers(progress)}
            put(json.dumps(told).encode() + b"\n")
            return
        lag = "" if progress.lag is None else f"; {progress.lag} behind"
        back = f", {progress.rollbacks} vbuckets rolled back" if progress.rollbacks else ""
        say(
            f"{self._place}: {progress.rows} changes in {progress.commits} commits{back} "
            f"in {progress.seconds:.1f} s{lag}"
        )


def _numbers(progress: "Progress") -> dict[str, Any]:
    return {
        "rows": progress.rows,
        "batches": progress.batches,
        "commits": progress.commits,
        "rollbacks": progress.rollbacks,
        "seqnos": progress.seqnos,
        "lag": progress.lag,
        "seconds": round(progress.seconds, 3),
    }


def _one_of(option: str, given: str, words: tuple[str, ...]) -> str:
    if given not in words:
        raise CommandError(f"{option} is {', '.join(words[:-1])} or {words[-1]}, not {given!r}")
    return given


def _duration(option: str, text: str) -> float:
    """Read a time.

    >>> _duration("--every", "1.5m")
    90.0
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h|d|)", text.strip())
    if found is None:
        raise CommandError(f"{option} is a time as 500ms, 10s, 5m or 1h, not {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def _size(option: str, text: str) -> int:
    found = re.fullmatch(r"(\d{1,12})\s*([kmg]?)b?", text.strip().lower())
    if found is None or not int(found[1]):
        raise CommandError(f"{option} is a size as 64m or 1g, not {text!r}")
    return int(found[1]) * _SIZES[found[2]]


def _settings(given: list[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.startswith("spark."):
            raise CommandError(f"--conf is spark.NAME=VALUE, not {each!r}")
        found[name] = value
    return found


__all__ = ["EXAMPLES", "run"]
