"""`headrace node`: run a node until it is told to stop."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import EXIT_OUTPUT, OutputError, say, silence
from headrace.errors import HeadraceError

EXIT_CANNOT_START = 1
"""It also ends so when, at a stop, something acknowledged could not be brought to disk."""
EXIT_INTERRUPTED = 130

EPILOG = """\b
Examples:
  headrace node --port 0
  headrace node --data ./data --vbuckets 64 --http 8091
  headrace node --host 0.0.0.0 --users users.json --tls-cert cert.pem --tls-key key.pem
"""


class Sync(StrEnum):
    """What `--sync` may be."""

    BEHIND = "behind"
    EVERY_WRITE = "every-write"


class Spoken(StrEnum):
    """What `--dialect` may be."""

    AUTO = "auto"
    DCP = "dcp"
    UPR = "upr"
    UPR_DRAFT = "upr-draft"


def node(  # noqa: PLR0913 - each option is a parameter
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than loopback only with --users.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 11210,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Directory of the data; a temporary one by default.")
    ] = None,
    vbuckets: Annotated[
        int | None,
        typer.Option(
            show_default="1024",
            help="How many vbuckets a bucket has: a power of two up to 1024. Data that is there keeps its number.",
        ),
    ] = None,
    bucket: Annotated[
        list[str] | None, typer.Option(help="A bucket to make where it is not there; may be repeated.")
    ] = None,
    users: Annotated[Path | None, typer.Option(help="Users file, as `headrace user add` makes it.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM): the port then speaks TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate (PEM).")] = None,
    http: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port for /health, /metrics and the REST routes.")
    ] = None,
    sync: Annotated[Sync, typer.Option(help="Acknowledge from memory, or only what is on disk.")] = Sync.BEHIND,
    dialect: Annotated[
        Spoken,
        typer.Option(help="What stream connections speak: told by their first message (auto), or one and no other."),
    ] = Spoken.AUTO,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[str, typer.Option(help="text or json, a line an event on stderr.")] = "text",
) -> None:
    """Run a node: vbuckets on disk behind the memcached binary protocol.

    Prints one line when it serves, and stops cleanly on SIGTERM, SIGHUP or Ctrl-C. Without --users it lets everyone in,
    and listens on loopback only.
    """
    from headrace.node.extra import needs_extra  # noqa: PLC0415 - other commands need none of this, and start the sooner
    from headrace.node.log import set_up_logging  # noqa: PLC0415

    try:
        with needs_extra():
            from headrace.cli.serve import serve  # noqa: PLC0415
            from headrace.node.options import NodeOptions  # noqa: PLC0415

        set_up_logging(level=log_level, form=log_format)
        options = NodeOptions(
            host=host,
            port=port,
            data=data,  # type: ignore[arg-type]  # a str, so that an empty one is seen: as a path it would be "."
            vbuckets=vbuckets,
            buckets=tuple(bucket or ("default",)),
            users=users,
            tls_cert=tls_cert,
            tls_key=tls_key,
            http=http,
            sync=sync.value,
            dialect=dialect.value,
        )
        serve(options)
    except OutputError as error:
        silence(sys.stdout)
        say(f"headrace node: {error}")
        raise typer.Exit(EXIT_OUTPUT) from error
    except KeyboardInterrupt:  # before the node listens to signals
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except HeadraceError as error:
        say(f"headrace node: {error}")
        raise typer.Exit(EXIT_CANNOT_START) from error
