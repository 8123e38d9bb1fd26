"""`headrace get`, `headrace set` and `headrace delete`: one item of a node, a Couchbase server or memcached."""

import base64
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.connect import CommandError, Target, connected, exits, put
from headrace.cli.output import OutputFormat, say

STANDARD_INPUT = "-"
_SERVER = "--connect couchbase://127.0.0.1:11210"

GET_EXAMPLES = ("headrace get user::1", f"headrace get {_SERVER} --output json user::1")
SET_EXAMPLES = (
    'headrace set user::1 \'{"name": "Ann"}\'',
    "echo hello | headrace set --expiry 60 greeting -",
    f"headrace set {_SERVER} --file README.md readme",
)
DELETE_EXAMPLES = ("headrace delete user::1", f"headrace delete {_SERVER} --output json greeting")
"""Commands that run as they stand, in this order, where a node listens at the default address."""


def epilog(examples: tuple[str, ...]) -> str:
    """Write examples as the help of a command ends."""
    return "\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples)


def _read_cas(text: str | None) -> int:
    if text is None:
        return 0
    try:
        cas = int(text, 0)
    except ValueError:
        cas = -1
    if not 0 < cas < 1 << 64:
        raise CommandError(f"--cas is a number from 1 to 2^64 - 1, decimal or 0x…, not {text!r}")
    return cas


KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The item's key, 1 to 250 bytes.")]
CasOption = Annotated[
    str | None, typer.Option("--cas", metavar="NUMBER", help="Do it only if the item is of this version.")
]
FormatOption = Annotated[OutputFormat, typer.Option("--output", help="For people, or one JSON object.")]


@connected
def get(key: KeyArgument, *, target: Target, output: FormatOption = OutputFormat.TEXT) -> None:
    """Print the value of an item, byte for byte.

    The exit code is 0 when there is such an item, 1 when there is none or the server refuses, and 69 when no server
    answers. With --output json, the object has the CAS, flags, datatype and vbucket, too; a value that is not UTF-8
    stands in value_base64.
    """
    with exits("get"), target.open() as node:
        name = os.fsencode(key)
        item = node.get(name)
        if output is OutputFormat.TEXT:
            at_terminal = sys.stdout is not None and sys.stdout.isatty()
            put(item.value + (b"\n" if at_terminal and not item.value.endswith(b"\n") else b""))
            return
        _put_json(
            key=key,
            **_value_shown(item.value),
            cas=item.cas,
            flags=item.flags,
            datatype=item.datatype,
            vbucket=node.vbucket_of(name),
        )


@connected
def set_(  # noqa: PLR0913 - each option is a parameter
    key: KeyArgument,
    value: Annotated[
        str | None, typer.Argument(metavar="[VALUE]", help="The value, or - for standard input.", show_default=False)
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option("--file", help="Take the value from a file.")] = None,
    expiry: Annotated[int, typer.Option(metavar="SECONDS", min=0, help="How long it lives; 0 is for ever.")] = 0,
    cas: CasOption = None,
    target: Target,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Store an item, whether or not it exists; with --cas only over that version.

    The exit code is 0 when it is stored, 1 when the server refuses, and 69 when no server answers. A value that is JSON
    is marked so that Couchbase's SDKs read it as JSON.
    """
    with exits("set"):
        from headrace.client import VALUE_BYTES_MAX, beside, wire_expiry  # noqa: PLC0415 - explain needs none of it

        version = _read_cas(cas)
        content = _read_value(value, file, VALUE_BYTES_MAX)
        with target.open() as node:
            name = os.fsencode(key)
            flags, datatype = beside(content, node.features)
            ends = wire_expiry(expiry, now=time.time())
            reply = node.set(name, content, flags=flags, datatype=datatype, expiry=ends, cas=version)
            _tell("stored", key, reply, node.vbucket_of(name), output)


@connected
def delete(
    key: KeyArgument, *, cas: CasOption = None, target: Target, output: FormatOption = OutputFormat.TEXT
) -> None:
    """Remove an item; with --cas only if it is of that version.

    The exit code is 0 when it is removed, 1 when there is none or the server refuses, and 69 when no server answers.
    """
    with exits("delete"):
        version = _read_cas(cas)
        with target.open() as node:
            name = os.fsencode(key)
            _tell("removed", key, node.delete(name, cas=version), node.vbucket_of(name), output)


def _read_value(value: str | None, file: Path | None, bytes_max: int) -> bytes:
    if (value is None) == (file is None):
        raise CommandError("give a value, or - for standard input, or --file")
    try:
        if file is not None:
            with file.open("rb") as opened:
                content = opened.read(bytes_max + 1)
        elif value == STANDARD_INPUT:
            content = sys.stdin.buffer.read(bytes_max + 1) if sys.stdin is not None else b""
        else:
            content = os.fsencode(value or "")
    except OSError as error:
        raise CommandError(f"{file or 'standard input'} cannot be read: {error.strerror}") from None
    if len(content) > bytes_max:
        raise CommandError(f"a value has at most {bytes_max} bytes")
    return content


def _tell(done: str, key: str, reply: Any, vbucket: int, output: OutputFormat) -> None:
    """Say what a change came to: which version, and where in the vbucket's history if the server tells."""
    if output is OutputFormat.JSON:
        _put_json(key=key, cas=reply.cas, vbucket=vbucket, vbuuid=reply.vbuuid, seqno=reply.seqno)
        return
    seqno = "" if reply.seqno is None else f", vbucket {vbucket}, seqno {reply.seqno}"
    shown: Callable[[int], str] = "0x{:016x}".format
    cas = f", cas {shown(reply.cas)}" if reply.cas else ""
    say(f"{done} {key}{cas}{seqno}")


def _value_shown(value: bytes) -> dict[str, str]:
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def _put_json(**fields: Any) -> None:
    put(json.dumps(fields).encode() + b"\n")
