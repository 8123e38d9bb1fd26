"""`headrace failover`: replicas become owners, on new branches of history."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.connect import EXIT_REFUSED, LateOutput, Target, connected, exits
from headrace.cli.items import FormatOption, epilog
from headrace.cli.output import OutputFormat, say
from headrace.cli.pair import read_vbuckets, server_of

if TYPE_CHECKING:
    from headrace.pipelines.failover import Promotion

EPILOG = epilog(
    (
        "headrace failover --connect 127.0.0.1:11310 --vbucket 7",
        "headrace failover --connect 127.0.0.1:11310 --vbucket 0-15,20 --output json",
    )
)


@connected
def failover(
    *,
    vbucket: Annotated[str, typer.Option("--vbucket", metavar="LIST", help="The vbucket, or several, as in 0-15,20.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also vbuckets that are active already, or that were given up.")
    ] = False,
    target: Target,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Make a server the owner of vbuckets of which it has replicas.

    For when the owner is gone: nothing is asked of it, and if it comes back, there are two. Each vbucket begins a new
    branch of its history; consumers that saw more than the replica are told to roll back. What a replica has of an
    unfinished snapshot is dropped.

    The exit code is 0 when all are owned now, 1 when one was refused (the others are done), and 69 when the server does
    not answer.
    """
    from headrace.pipelines.failover import promote  # noqa: PLC0415 - see connect.py
    from headrace.pipelines.replicate import RefusedError  # noqa: PLC0415

    refused = 0
    written = LateOutput()
    with exits("failover"):
        server = server_of(target)
        for vb in read_vbuckets(vbucket):
            try:
                promotion = promote(server, vb, force=force)
            except RefusedError as error:
                say(f"headrace failover: {error}")
                refused += 1
            else:
                _tell(promotion, str(server), output, written)
        written.check()
    raise typer.Exit(EXIT_REFUSED if refused else 0)


def _tell(promotion: "Promotion", server: str, output: OutputFormat, written: LateOutput) -> None:
    if promotion.is_first_copy_lost:
        say(f"warning: the first copy of vbucket {promotion.vbucket} was unfinished; it begins empty")
    elif promotion.dropped:
        say(
            f"warning: vbucket {promotion.vbucket} dropped {promotion.dropped} seqnos of an unfinished snapshot, "
            f"behind {promotion.seqno}"
        )
    if output is OutputFormat.JSON:
        told = {
            "vbucket": promotion.vbucket,
            "server": server,
            "was": promotion.was.name.lower(),
            "vbuuid": promotion.vbuuid,
            "seqno": promotion.seqno,
            "dropped_seqnos": promotion.dropped,
        }
        written.put(json.dumps(told).encode() + b"\n")
        return
    say(
        f"vbucket {promotion.vbucket} is active at {server}, branch {promotion.vbuuid} "
        f"from seqno {promotion.seqno} on; it was {promotion.was.name.lower()}"
    )
