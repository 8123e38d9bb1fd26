"""`headrace replicate`: vbuckets of one server kept as replicas at another."""

import json
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.connect import EXIT_REFUSED, exits, put
from headrace.cli.explain import EXIT_INTERRUPTED
from headrace.cli.items import FormatOption, epilog
from headrace.cli.output import OutputFormat, say
from headrace.cli.pair import Pair, StatusLine, Stopping, joined, read_vbuckets

if TYPE_CHECKING:
    from headrace.pipelines.replicate import Event, Progress

EPILOG = epilog(
    (
        "headrace replicate --from 127.0.0.1:11210 --to 127.0.0.1:11310",
        "headrace replicate --from 127.0.0.1:11210 --to 127.0.0.1:11310 --once",
        "headrace replicate --from 127.0.0.1:11210 --to 127.0.0.1:11310 --vbuckets 0-15,20 --output json",
    )
)
_MILLION, _THOUSAND = 1_000_000, 1000

VbucketsOption = Annotated[
    str | None,
    typer.Option(
        "--vbuckets", metavar="LIST", help="Which vbuckets, as in 0-15,20; without it, all that the first server owns."
    ),
]


class Dialect(StrEnum):
    """What `--dialect` may be."""

    DCP = "dcp"
    UPR = "upr"
    UPR_DRAFT = "upr-draft"


@joined
def replicate(
    *,
    pair: Pair,
    vbuckets: VbucketsOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when the copy has on disk what the first server had at the start.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Make replicas also of vbuckets that hold changes of the second server.")
    ] = False,
    dialect: Annotated[
        Dialect,
        typer.Option(
            "--dialect",
            help="What the two speak to each other; the older ones need a headrace node as the second server.",
        ),
    ] = Dialect.DCP,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Keep vbuckets of one server as replicas at another, until stopped.

    The command stands between the two: it makes the first a producer and the second a consumer of DCP, and carries the
    bytes. Either may be a headrace node or a Couchbase server. Lines that break are made anew; a run that ends, however
    it ends, can be started again and goes on where the copies are.

    The exit code is 0 when it was stopped by a signal or, with --once, has copied everything; 1 when a server refuses
    or something would be lost; 69 when a server does not answer at the start; 130 when --once was interrupted.
    """
    with exits("replicate"):
        chosen = read_vbuckets(vbuckets) if vbuckets is not None else None
        code = _Run(pair, output).run(chosen, once=once, force=force, dialect=dialect)
    raise typer.Exit(code)


class _Run:
    """One run of the command."""

    def __init__(self, pair: Pair, output: OutputFormat) -> None:
        self._source, self._target = pair.source(), pair.target()
        self._output = output
        self._line = StatusLine()
        self._started = time.monotonic()

    def run(self, vbuckets: list[int] | None, *, once: bool, force: bool, dialect: Dialect) -> int:
        from headrace.pipelines.replicate import RefusedError, Replication  # noqa: PLC0415 - see connect.py
        from headrace.wire import Dialect as Spoken  # noqa: PLC0415 - as above

        spoken = Spoken(dialect.value)
        job = Replication(self._source, self._target, vbuckets=vbuckets, force=force, dialect=spoken, tell=self._tell)
        with Stopping() as stop:

            def look() -> bool:
                self._show(job.progress)
                return stop()

            try:
                progress = job.run(look, once=once)
            except RefusedError as error:
                self._line.clear()
                say(f"headrace replicate: {error}")
                return EXIT_REFUSED
            finally:
                self._line.clear()
        self._sum_up(progress)
        if progress.dropped and not stop():
            return EXIT_REFUSED
        return EXIT_INTERRUPTED if once and stop() else 0

    def _tell(self, event: "Event", text: str) -> None:
        self._line.clear()
        if self._output is OutputFormat.JSON:
            put(json.dumps({"event": event, "text": text}).encode() + b"\n")
        else:
            say(f"{event}: {text}")

    def _show(self, progress: "Progress") -> None:
        seconds = max(time.monotonic() - self._started, 0.001)
        rate = progress.items / seconds
        self._line.show(
            f"{progress.vbuckets - len(progress.dropped)} vbuckets, {progress.items} items, "
            f"{progress.bytes / _MILLION:.1f} MB, {rate / _THOUSAND:.1f} k/s, {progress.behind} behind"
        )

    def _sum_up(self, progress: "Progress") -> None:
        seconds = time.monotonic() - self._started
        if self._output is OutputFormat.JSON:
            told = {
                "event": "ended",
                "from": str(self._source),
                "to": str(self._target),
                "vbuckets": progress.vbuckets,
                "items": progress.items,
                "bytes": progress.bytes,
                "joins": progress.joins,
                "caught_up": progress.caught_up,
                "dropped": {str(vb): why for vb, why in progress.dropped.items()},
                "seconds": round(seconds, 3),
            }
            put(json.dumps(told).encode() + b"\n")
            return
        say(
            f"carried {progress.items} items ({progress.bytes / _MILLION:.1f} MB) of {progress.vbuckets} vbuckets "
            f"in {seconds:.1f} s from {self._source} to {self._target}"
        )
