"""`headrace replicate`: vbuckets of one server kept as replicas at another."""

import json
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.connect import EXIT_REFUSED, CommandError, exits, put
from headrace.cli.explain import EXIT_INTERRUPTED
from headrace.cli.items import FormatOption, epilog
from headrace.cli.output import OutputFormat, say
from headrace.cli.pair import Pair, StatusLine, Stopping, joined, read_vbuckets

if TYPE_CHECKING:
    from headrace.client import ChangeOptions
    from headrace.pipelines.replicate import Event, Progress, Replication
    from headrace.pipelines.tap_replicate import TapReplication

EPILOG = epilog(
    (
        "headrace replicate --from 127.0.0.1:11210 --to 127.0.0.1:11310",
        "headrace replicate --from 127.0.0.1:11210 --to 127.0.0.1:11310 --once",
        "headrace replicate --from 127.0.0.1:11210 --to 127.0.0.1:11310 --vbuckets 0-15,20 --output json",
        "headrace replicate --from tap://old.example.com:11210 --to 127.0.0.1:11210",
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
def replicate(  # noqa: PLR0913 - each option is a parameter
    *,
    pair: Pair,
    vbuckets: VbucketsOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when the copy has on disk what the first server had at the start.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Make replicas also of vbuckets that hold changes of the second server; by TAP, of those that it has "
            "dead or not at all.",
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="By TAP: what the first server knows the job by, to go on where it was. By default a name that is the "
            "same for the same second server.",
            show_default=False,
        ),
    ] = None,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="By TAP: have the first server forget the name at the end, and free its memory."),
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

    An old server is read by TAP, with --from tap://host:port (taps:// for TLS). Its messages go to the second server as
    they are; that one gives them seqnos of its own, and its vbuckets may be active, replicas or pending. An ack goes
    back when the second server has on disk what it is of. TAP has no positions: where the first server does not know
    the name of the job any more, all comes again, and what is there already changes nothing.

    The exit code is 0 when it was stopped by a signal or, with --once, has copied everything; 1 when a server refuses
    or something would be lost; 69 when a server does not answer at the start; 130 when --once was interrupted.
    """
    with exits("replicate"):
        chosen = read_vbuckets(vbuckets) if vbuckets is not None else None
        tap = pair.tap_source(chosen)
        if tap is None and (name is not None or forget):
            raise CommandError("--name and --forget are for an old server that is read by TAP: --from tap://host:port")
        if tap is not None and dialect is not Dialect.DCP:
            raise CommandError("--dialect is for servers that speak UPR or DCP; tap:// is a dialect of its own")
        run = _Run(pair, output)
        code = (
            run.by_dcp(chosen, dialect, once=once, force=force)
            if tap is None
            else run.by_tap(tap, name, once=once, force=force, forget=forget)
        )
    raise typer.Exit(code)


class _Run:
    """One run of the command."""

    def __init__(self, pair: Pair, output: OutputFormat) -> None:
        self._pair = pair
        self._target = pair.target()
        self._source = pair.from_
        self._output = output
        self._line = StatusLine()
        self._started = time.monotonic()

    def by_dcp(self, vbuckets: list[int] | None, dialect: Dialect, *, once: bool, force: bool) -> int:
        from headrace.pipelines.replicate import Replication  # noqa: PLC0415 - see connect.py
        from headrace.wire import Dialect as Spoken  # noqa: PLC0415 - as above

        source = self._pair.source()
        self._source = str(source)
        spoken = Spoken(dialect.value)
        job = Replication(source, self._target, vbuckets=vbuckets, force=force, dialect=spoken, tell=self._tell)
        return self._run(job, once=once)

    def by_tap(self, source: "ChangeOptions", name: str | None, *, once: bool, force: bool, forget: bool) -> int:
        from headrace.pipelines.tap_replicate import TapReplication  # noqa: PLC0415 - see connect.py

        job = TapReplication(source, self._target, name=name, force=force, tell=self._tell)
        code = self._run(job, once=once)
        if forget:
            job.forget()
        return code

    def _run(self, job: "Replication | TapReplication", *, once: bool) -> int:
        from headrace.pipelines.replicate import RefusedError  # noqa: PLC0415 - see connect.py

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
                "from": self._source,
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
