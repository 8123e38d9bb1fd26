"""docs/reference/explain.md: the command as its own parser describes it, its exit codes and its JSON."""

import json
import re
from inspect import cleandoc
from typing import Any

import typer

from headrace.cli import app
from headrace.cli import explain as command
from headrace.cli.output import EXIT_OUTPUT
from headrace.explain import Explained, explain, limits, read_inputs, render_json
from headrace.wire.limits import BODY_BYTES_MAX
from tools.reference.markdown import bullets, fenced, page, table

SOURCE = "src/headrace/cli"
_SAMPLE = "800a00000000000000000000000000070000000000000000"
_RAW_KEY = "801000010000000000000001000000000000000000000000ff"
_UNREADABLE = Explained(
    dialect="dcp", dissection=None, data=b"\xff", problems=(), connection="", direction=None, origin=""
)
_EXIT_CODES = {
    command.EXIT_FINE: "every message shown is in order",
    command.EXIT_PROBLEMS: "a message shown has a problem, part of the input could not be read, "
    "or the command line is wrong",
    EXIT_OUTPUT: "the output cannot be written: standard output is closed, or its disk is full",
    command.EXIT_INTERRUPTED: "interrupted from the keyboard",
    command.EXIT_BROKEN_PIPE: "whoever read the output left",
}
_EXIT_RULE = (
    "Only messages that are shown count: one that `--only`, `--limit` or `--port` leaves out may have a problem, and "
    "the exit code is still 0. Damage to the input itself, such as a line that is no JSON or a packet that is cut "
    "off, counts wherever the input was read; `--limit` stops reading."
)
_SPLIT = f"split it: `{limits.SPLIT_CAPTURE}`"
LIMITS = {
    "FILE_BYTES_MAX": ("one input, a file or standard input", f"{_SPLIT} for a packet capture"),
    "TEXT_BYTES_MAX": (
        "hex text and dumps",
        f"turn it into bytes: `{limits.TEXT_TO_BINARY}` for hex, `xxd -r` for a dump",
    ),
    "TEXT_LINES_MAX": ("lines of hex text and dumps", "likewise"),
    "LINE_BYTES_MAX": ("a line of a JSON-lines capture", "write each message on a line of its own"),
    "PACKETS_MAX": ("packets of one capture", _SPLIT),
    "PACKET_BYTES_MAX": ("one packet", "none: a larger length is damage, and the packets before it are read"),
    "CONNECTIONS_MAX": ("connections of one capture", f"`--port`, or {_SPLIT}"),
    "FAULTS_MAX": ("damaged lines of one capture", "none: such a file is no capture; the lines before are read"),
}
"""The limits that end the reading of an input: what they bound, and the way out."""

SILENT_LIMITS = {
    "WHOLE_BYTES_MAX": "a binary input up to this size may be one message that contradicts its header; in a larger "
    "one, headers are believed",
    "REASSEMBLY_BYTES_MAX": "so much of one direction of a connection waits for a lost segment",
    "REASSEMBLY_SEGMENTS_MAX": "so many segments wait likewise",
    "JUDGED_MESSAGES_MAX": "so many messages of a conversation are looked at to find its dialect",
    "HELD_MESSAGES_MAX": "so many messages wait for that, over all conversations",
    "HELD_BYTES_MAX": "so many bytes of messages wait likewise",
}
"""The limits past which reading goes on in another manner."""

_ORIGINS = ", ".join(
    f"`{each}`"
    for each in (
        "argument 1",
        "byte 24 of argument 1",
        "byte 5005 of stream.bin",
        "line 3 of notes.txt",
        "byte 24 of the dump at line 1 of notes.txt",
        "frame 7 of changes.pcap",
    )
)
OBJECT_KEYS = {
    "dialect": ("string", "`tap`, `upr-draft`, `upr`, `dcp`, or `kv` for what all dialects share"),
    "message": ("string", "name in the catalogue; `unknown` for an unknown opcode, `unreadable` for no message"),
    "kind": ("string or null", "`request`, `response`, `server_request`, `server_response`; null with `unreadable`"),
    "opcode": ("number or null", "the opcode; null with `unreadable`"),
    "fields": ("list", "the fields in the order of the bytes, see below"),
    "problems": ("list", "what is wrong: `offset` in the message, and `text` for people; empty when in order"),
    "connection": ("string", "which conversation the message belongs to"),
    "direction": ("string or null", "`c2s` from the client, `s2c` from the server, null where the input does not tell"),
    "origin": ("string", f"where in the input the message begins: {_ORIGINS}; bytes count from 0, all else from 1"),
    "length": ("number", "how many bytes it has"),
    "hex": ("string", "the bytes; only with `unreadable`"),
}
FIELD_KEYS = {
    "name": ("string", "name of the field; several fields may share one, as rows of a list do"),
    "offset": ("number", "where it begins, counted from the start of the message"),
    "length": ("number", "how many bytes it has"),
    "value": ("number or string", "integers as numbers up to 2^64 - 1; readable bytes as text, others as hex"),
    "encoding": ("string", "`hex`; only where `value` is hex"),
    "hex": ("string", "the bytes of the field, always as hex"),
    "meaning": ("string", "the number in words; empty where it has none"),
}


def explain_page() -> str:
    """docs/reference/explain.md."""
    group: Any = typer.main.get_command(app)  # typer brings a click of its own, whose classes have no public name
    parsed = group.commands["explain"]
    records = _records(parsed, "headrace explain")
    arguments = [[f"`{name.split()[0]}`", text] for kind, name, text in records if kind == "argument"]
    usage = parsed.get_usage(typer.Context(parsed, info_name="headrace explain")).removeprefix("Usage: ")
    _check_contract()
    return page(
        "headrace explain",
        SOURCE,
        fenced(usage),
        cleandoc(parsed.help),
        "## Arguments",
        table(["argument", "what it is"], arguments),
        "## Options",
        _options(records),
        "Options of `headrace` itself:",
        _options(_records(group, "headrace")),
        "## Examples",
        fenced(_examples(), "sh"),
        "## Exit codes",
        table(["code", "when"], ([str(code), text] for code, text in _EXIT_CODES.items())),
        _EXIT_RULE,
        *_limit_parts(),
        *_json_parts(),
    )


def _records(parsed: Any, name: str) -> list[tuple[str, str, str]]:
    """Kind, declaration and help of each parameter, as the help text has them."""
    context = typer.Context(parsed, info_name=name)
    return [(each.param_type_name, *each.get_help_record(context)) for each in parsed.get_params(context)]


def _options(records: list[tuple[str, str, str]]) -> str:
    rows = (_option(declared, text) for kind, declared, text in records if kind == "option")
    return table(["option", "default", "what it does"], rows)


def _option(declared: str, text: str) -> list[str]:
    default = re.search(r"\s*\[default: (.*?)(?:; (.*?))?\]", text)
    plain = text.replace(default[0], f" [{default[2]}]" if default[2] else "") if default else text
    return [f"`{declared}`", f"`{default[1]}`" if default else "", plain]


def _examples() -> str:
    return re.sub(r"\n +", "\n    ", "\n\n".join(command.EXAMPLES))


def _explained(text: str) -> dict[str, Any]:
    shown = next(each for each in explain(read_inputs([text])) if isinstance(each, Explained))
    found: dict[str, Any] = json.loads(render_json(shown))
    return found


def _check_contract() -> None:
    """Fail where the program writes a key that the page does not describe, or describes one it never writes."""
    objects = [_explained(_SAMPLE), _explained(_RAW_KEY), json.loads(render_json(_UNREADABLE))]
    fields = [field for each in objects for field in each["fields"]]
    for written, known in ((objects, OBJECT_KEYS), (fields, FIELD_KEYS)):
        keys = {key for each in written for key in each}
        assert keys == set(known), f"docs/reference/explain.md and the program differ in {keys ^ set(known)}"


def _limit(name: str) -> str:
    value: int = getattr(limits, name)
    return limits.size(value) if "BYTES" in name else str(value)


def _limit_parts() -> list[str]:
    known = {name for name in vars(limits) if name.endswith("_MAX")}
    assert known == {*LIMITS, *SILENT_LIMITS}, f"docs/reference/explain.md lacks {known ^ {*LIMITS, *SILENT_LIMITS}}"
    huge = limits.size(BODY_BYTES_MAX)
    return [
        "## Limits\n\nAn input past one of these ends with a sentence and exit code 2:",
        table(
            ["of what", "at most", "the way out"], ([text, _limit(name), out] for name, (text, out) in LIMITS.items())
        ),
        "Past one of these, reading goes on:",
        table(["at most", "what it means"], ([_limit(name), text] for name, text in SILENT_LIMITS.items())),
        f"A header with a body of more than {huge} is believed by no server: reading goes on at the next good one.",
    ]


def _json_parts() -> list[str]:
    sample = _explained(_SAMPLE)
    sample["fields"] = sample["fields"][:2]
    rules = [
        "One object a line, ASCII only, one line a message, in the order of the input.",
        "Keys keep their names and meanings. New keys may come; a reader skips those it does not know.",
        "Numbers go up to 2^64 - 1. A reader that holds numbers as doubles takes `hex` instead.",
        "Standard output holds nothing else. Words for people go to standard error.",
    ]
    return [
        "## JSON\n\n`--output json` is for programs:",
        bullets(rules),
        table(["key", "type", "what it is"], ([f"`{key}`", *rest] for key, rest in OBJECT_KEYS.items())),
        "Each entry of `fields`:",
        table(["key", "type", "what it is"], ([f"`{key}`", *rest] for key, rest in FIELD_KEYS.items())),
        "A noop, with the first two of its fields:",
        fenced(json.dumps(sample, indent=2), "json"),
    ]
