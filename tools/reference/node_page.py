"""docs/reference/node.md: the command, what it serves, what it grants and refuses, and its limits."""

import inspect
from collections.abc import Iterator
from dataclasses import fields
from inspect import cleandoc
from typing import Any

import typer

from headrace.cli import app
from headrace.cli import node as command
from headrace.cli.output import EXIT_OUTPUT
from headrace.node import NodeLimits, commands, http, limits, rest, tls  # noqa: F401 - commands enters the handlers
from headrace.node.commands.session import VERSION
from headrace.node.dcp.opening import stream_message
from headrace.node.dispatch import HANDLERS, Handler, Who
from headrace.node.sasl import MECHANISMS
from headrace.node.services import OPEN_PASSWORD, OPEN_USER
from headrace.node.session import GRANTED
from headrace.node.users import Role
from headrace.wire import Dialect
from headrace.wire.codes import Feature
from headrace.wire.message import Message, Spec
from headrace.wire.registry import REQUESTS
from tools.reference.attributes import field_sentences
from tools.reference.command_page import _options, _records
from tools.reference.markdown import anchor, bullets, fenced, link, page, table
from tools.reference.messages import heading, page_of, title

SOURCE = "src/headrace/cli/node.py and src/headrace/node"
_EXIT_CODES = {
    "0": "it was told to stop, by SIGTERM, SIGHUP or Ctrl-C, and everything is on disk",
    str(
        command.EXIT_CANNOT_START
    ): "it cannot start, or it stopped and could not bring all that it had acknowledged to "
    "disk; one sentence on standard error says which, and why",
    "2": "the command line is wrong",
    str(EXIT_OUTPUT): "the line that says where it serves cannot be written: standard output is full or broken",
    str(command.EXIT_INTERRUPTED): "Ctrl-C before it had begun to start",
}
_COLLECTIONS = "hello does not agree on collections"
_SUBDOC = "several paths are served wholly or not at all: a partial answer ends Couchbase's SDKs"
NOT_SERVED = {
    "get_collections_manifest": _COLLECTIONS,
    "get_collection_id": _COLLECTIONS,
    "get_scope_id": _COLLECTIONS,
    "subdoc_multi_lookup": _SUBDOC,
    "subdoc_multi_mutation": _SUBDOC,
}
NEEDS = {
    **dict.fromkeys(("create_bucket", "delete_bucket"), "`admin` in every bucket"),
    "open": "`stream` to produce, `admin` to consume",
    "stream_request": "`admin` for a takeover",
    "tap_connect": "`stream`, `admin` for a takeover",
}
"""What a handler checks for itself."""
FEATURES = {
    Feature.TCP_NODELAY: "agreed on; every connection has it",
    Feature.MUTATION_SEQNO: "answers to writes carry the vbucket's uuid and the seqno",
    Feature.XATTR: "values may carry extended attributes, and say so in their datatype",
    Feature.XERROR: "statuses of their own for locked items; the error map is served",
    Feature.SELECT_BUCKET: "no bucket is implied: the client selects one",
    Feature.SNAPPY: "values may be compressed, and are given back as they came",
    Feature.JSON: "values that are JSON say so in their datatype",
    Feature.DUPLEX: "the node may send requests; it sends none yet",
    Feature.ALT_REQUEST: "requests may have a flexible header with framing extras",
    Feature.PRESERVE_TTL: "a write may leave the expiry as it is",
}
_BARE_LIMITS = {
    "connections_max": "Connections at a time; one more is closed at once.",
    "body_bytes_max": "The body of one message; a longer one ends the connection.",
    "buckets_max": "Buckets of one node.",
}
_HTTP_LIMITS = (
    (http, "CONNECTIONS_MAX"), (http, "IDLE_S_MAX"), (http, "GOODBYE_S"), (rest, "HEAD_BYTES_MAX"),
    (rest, "STREAMS_MAX"), (rest, "LOOK_EVERY_S"),
)  # fmt: skip
_KIB, _MIB = 1024, 1024 * 1024


def node_page() -> str:
    """The whole page."""
    group: Any = typer.main.get_command(app)
    parsed = group.commands["node"]
    usage = parsed.get_usage(typer.Context(parsed, info_name="headrace node")).removeprefix("Usage: ")
    return page(
        "headrace node",
        SOURCE,
        fenced(usage),
        cleandoc(parsed.help),
        "To do: [run a node](../guides/run-a-node.md), [secure a node](../guides/secure-a-node.md). To understand: "
        "[durability](../concepts/durability.md). To look at one: [statistics and metrics](stats.md).",
        "## Options",
        _options(_records(parsed, "headrace node")),
        "Options of `headrace` itself:",
        _options(_records(group, "headrace")),
        "The line `headrace node ready on HOST:PORT` goes to standard output when the node serves, and nothing else "
        "does; an IPv6 address stands in brackets, as in `[::1]:11210`. Events go to standard error. Where a standard "
        "stream is closed (`>&-`), what would go there goes nowhere. Under `nohup`, SIGHUP is ignored.",
        "## Examples",
        fenced("\n".join(line.strip() for line in command.EPILOG.splitlines() if line.startswith("  ")), "sh"),
        "## Exit codes",
        table(["code", "when"], _EXIT_CODES.items()),
        *_access_parts(),
        *_command_parts(),
        *_feature_parts(),
        *_http_parts(),
        *_limit_parts(),
    )


def _access_parts() -> list[str]:
    sentences = field_sentences(Role)
    return [
        "## Users and roles\n\nA user of the users file has roles, each in some buckets or in all:",
        table(["role", "what it allows"], ([f"`{role}`", sentences[role.name]] for role in Role)),
        (
            f"SASL mechanisms, best first: {', '.join(f'`{name}`' for name in MECHANISMS.decode().split())}. Without a "
            f"users file every client is `{OPEN_USER}` with the role `admin`; PLAIN takes any password then, and the "
            f"SCRAM mechanisms take `{OPEN_PASSWORD}`."
        ),
    ]


def _command_parts() -> list[str]:
    served = sorted((cls for cls in REQUESTS if cls.spec.name in HANDLERS), key=_opcode)
    plain = [cls for cls in REQUESTS if cls.spec.family and cls.spec.name not in HANDLERS]
    names = {cls.spec.name for cls in plain}
    assert names == set(NOT_SERVED), f"docs/reference/node.md and the node differ in {names ^ set(NOT_SERVED)}"
    return [
        (
            "## Commands\n\n*needs* is the role, or who may ask; *bucket* says that one must be selected. Clients that "
            "never select one work on `default`."
        ),
        table(
            ["opcode", "command", "needs", "bucket", "what it does"],
            (_command_row(cls.spec, HANDLERS[cls.spec.name]) for cls in served),
        ),
        "Plain commands of the catalogue that are not served are answered with status 0x83 (not supported):",
        table(
            ["opcode", "command", "why not"],
            (
                [_opcode_link(cls.spec), title(cls.spec), NOT_SERVED[cls.spec.name]]
                for cls in sorted(plain, key=_opcode)
            ),
        ),
        (
            "TAP messages (0x41 to 0x47) are acknowledged when they ask for it; what is refused is told to who asked, "
            "or has sent OPAQUE 0 before. The other opcodes of streams are those of DCP; the "
            "[UPR draft](../concepts/dialects.md) has others, and three messages of its own. An unknown opcode is "
            "answered with 0x81. memcached's ASCII protocol is not served: a connection that begins with a letter is "
            "closed."
        ),
    ]


def _dialect(spec: Spec) -> Dialect:
    """The dialect in which a node is asked: DCP, but for what only others have."""
    return Dialect.DCP if Dialect.DCP in spec.opcodes else next(iter(spec.opcodes))


def _opcode(cls: type[Message]) -> int:
    return cls.spec.opcodes[_dialect(cls.spec)]


def _opcode_link(spec: Spec) -> str:
    dialect = _dialect(spec)
    there = f"../protocol/{page_of(spec, dialect)}#{anchor(heading(spec, dialect))}"
    return link(f"0x{spec.opcodes[dialect]:02x}", there)


def _command_row(spec: Spec, handler: Handler) -> list[str]:
    needs = f"`{handler.needs}`" if isinstance(handler.needs, Role) else _who(handler.needs)
    needs = NEEDS.get(spec.name, needs)
    # Messages of streams share a handler, and say by themselves what they are for.
    told = spec.sentence if handler.serve is stream_message else handler.serve.__doc__ or ""
    sentence = cleandoc(told).split("\n\n", maxsplit=1)[0]
    return [_opcode_link(spec), title(spec), needs, "yes" if handler.bucket else "no", sentence]


def _who(who: Who) -> str:
    return {Who.ANYONE: "nothing", Who.KNOWN: "a login"}[who]


def _feature_parts() -> list[str]:
    assert set(FEATURES) == GRANTED, f"docs/reference/node.md and hello differ in {set(FEATURES) ^ GRANTED}"
    rows = ([f"0x{feature:02x}", f"`{feature.name}`", FEATURES[feature]] for feature in sorted(FEATURES))
    return [
        "## Features\n\nWhat hello agrees on when a client asks for it, and what follows from it:",
        table(["feature", "name", "what follows"], rows),
        f"The version that clients are told is `{VERSION.decode()}`: they read the number to learn what they may ask.",
    ]


def _http_parts() -> list[str]:
    rows = ([f"`{entry.path}`", entry.sentence] for entry in rest.ROUTES)
    rules = [
        "GET and HEAD only; another method is answered with 405, another address with 404 and the list of routes.",
        (
            "With `--users` every route but `/health` wants HTTP Basic with a user of the file, in any role. A user is "
            "told of the buckets in which they have a role; `/health` names no bucket to who gives no name."
        ),
        "With `--tls-cert` the port speaks TLS, with the same certificate.",
        "The host in a map is the one that the client named in its `Host` header.",
        "A streamed map is followed by four line feeds; a new one comes within a second of a change.",
    ]
    return ["## HTTP\n\n`--http PORT` serves these beside the KV port:", table(["route", "what"], rows), bullets(rules)]


def _limit_parts() -> list[str]:
    sentences = {**_BARE_LIMITS, **field_sentences(NodeLimits)}
    names = {field.name for field in fields(NodeLimits)}
    assert names == set(sentences), f"a limit without a sentence, or a sentence without: {names ^ set(sentences)}"
    node = (
        [f"`{field.name}`", _amount(field.name, field.default), sentences[field.name]] for field in fields(NodeLimits)
    )
    return [
        "## Limits\n\nFields of `headrace.node.NodeLimits`, which a program that embeds a node may set:",
        table(["limit", "default", "of what"], node),
        "Not to be set:",
        table(["limit", "value", "of what"], _fixed_limits()),
    ]


def _fixed_limits() -> Iterator[list[str]]:
    yield [
        "value of an item",
        _amount("VALUE_BYTES_MAX", limits.VALUE_BYTES_MAX),
        "What was compressed counts inflated.",
    ]
    yield ["lock", f"{limits.LOCK_S_DEFAULT} s, at most {limits.LOCK_S_MAX} s", "How long an item stays locked."]
    yield ["TLS handshake", _amount("HANDSHAKE_S_MAX", tls.HANDSHAKE_S_MAX), _module_sentence(tls, "HANDSHAKE_S_MAX")]
    for module, name in _HTTP_LIMITS:
        yield [f"HTTP: `{name}`", _amount(name, getattr(module, name)), _module_sentence(module, name)]


def _module_sentence(module: Any, name: str) -> str:
    """The text under a constant of a module."""
    _, _, behind = inspect.getsource(module).partition(f"\n{name} = ")
    return behind.split('"""')[1]


def _amount(name: str, value: Any) -> str:
    upper = name.upper()
    if "BYTES" in upper:
        return f"{value // _MIB} MiB" if value % _MIB == 0 else f"{value // _KIB} KiB"
    if "_S_" in upper or upper.endswith("_S"):
        return f"{value:g} s"
    return str(value)
