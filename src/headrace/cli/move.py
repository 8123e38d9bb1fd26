"""`headrace move`: a vbucket changes its owner."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.connect import EXIT_REFUSED, EXIT_UNREACHABLE, LateOutput, exits
from headrace.cli.explain import EXIT_INTERRUPTED
from headrace.cli.items import FormatOption, epilog
from headrace.cli.output import OutputFormat, say
from headrace.cli.pair import EXIT_NOT_DONE, VBUCKETS_MAX, Pair, Stopping, joined

if TYPE_CHECKING:
    from headrace.pipelines.move import Moved, Step

EPILOG = epilog(
    (
        "headrace move --vbucket 7 --from 127.0.0.1:11210 --to 127.0.0.1:11310",
        "headrace move --vbucket 7 --from 127.0.0.1:11310 --to 127.0.0.1:11210 --output json",
        "headrace move --vbucket 7 --from tap://old.example.com:11210 --to 127.0.0.1:11210",
    )
)

VbucketOption = Annotated[
    int, typer.Option("--vbucket", metavar="NUMBER", min=0, max=VBUCKETS_MAX - 1, help="The vbucket.")
]


@joined
def move(
    *,
    pair: Pair,
    vbucket: VbucketOption,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also when the second server owns a vbucket of that number with changes of its own, and when the "
            "vbucket is dead at both and no third server owns it.",
        ),
    ] = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Make another server the owner of a vbucket, with writes going on.

    The items go first; then the first server gives the vbucket up, and the second takes it. There is never more than
    one owner. Whatever fails, the command then makes sure that there is exactly one, and says which; where a server is
    away, the same command run again does that.

    A vbucket of an old server is taken over by TAP, with --from tap://host:port (taps:// for TLS).

    The exit code is 0 when the second server owns the vbucket, also when it did before; 1 when a server refuses or
    something would be lost; 69 when a server does not answer; 75 when the first server still owns it, and it may be
    tried again; 130 when it was interrupted, with the first server as the owner.
    """
    with exits("move"):
        code = _run(pair, vbucket, force=force, output=output)
    raise typer.Exit(code)


def _run(pair: Pair, vbucket: int, *, force: bool, output: OutputFormat) -> int:
    from headrace.pipelines.move import Move, NotMovedError, UnresolvedError  # noqa: PLC0415 - see connect.py
    from headrace.pipelines.replicate import RefusedError  # noqa: PLC0415

    written = LateOutput()

    def tell(step: "Step", text: str) -> None:
        if output is OutputFormat.JSON:
            written.put(json.dumps({"event": step, "text": text}).encode() + b"\n")
        else:
            say(f"{step}: {text}")

    target, tap = pair.target(), pair.tap_source()
    job: Move
    if tap is None:
        source = pair.source()
        shown, job = str(source), Move(source, target, vbucket, force=force, tell=tell)
    else:
        from headrace.pipelines.tap_move import TapMove  # noqa: PLC0415 - see connect.py

        shown, job = pair.from_, TapMove(tap, target, vbucket, force=force, tell=tell)
    with Stopping() as stop:
        try:
            moved = job.run(stop)
        except RefusedError as error:
            say(f"headrace move: {error}")
            return EXIT_REFUSED
        except UnresolvedError as error:
            say(f"headrace move: {error}")
            return EXIT_UNREACHABLE
        except NotMovedError as error:
            say(f"headrace move: {error}")
            return EXIT_INTERRUPTED if stop() else EXIT_NOT_DONE
    _sum_up(moved, shown, str(target), output, written)
    written.check()
    return 0


def _sum_up(moved: "Moved", source: str, target: str, output: OutputFormat, written: LateOutput) -> None:
    if output is OutputFormat.JSON:
        told = {
            "event": "ended",
            "vbucket": moved.vbucket,
            "from": source,
            "to": target,
            "owner": target,
            "already": moved.already,
            "items": moved.items,
            "bytes": moved.bytes,
            "attempts": moved.attempts,
            "vbuuid": moved.vbuuid,
            "seqno": moved.seqno,
        }
        written.put(json.dumps(told).encode() + b"\n")
    elif moved.already:
        say(f"nothing was to be done: {target} owned vbucket {moved.vbucket} already")
    else:
        say(f"carried {moved.items} items; vbucket {moved.vbucket} stands at seqno {moved.seqno}")
