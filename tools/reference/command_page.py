"""docs/reference/explain.md: the command as its own parser describes it, its exit codes and its JSON."""

import json
import re
from inspect import cleandoc
from typing import Any

import typer

from headrace.cli import app
from headrace.cli import explain as command
from headrace.explain import Explained, explain, read_inputs, render_json
from tools.reference.markdown import bullets, fenced, page, table

SOURCE = "src/headrace/cli"
_SAMPLE = "800a00000000000000000000000000070000000000000000"
_RAW_KEY = "801000010000000000000001000000000000000000000000ff"
_UNREADABLE = Explained(
    dialect="dcp", dissection=None, data=b"\xff", problems=(), connection="", direction=None, origin=""
)
_EXIT_CODES = {
    command.EXIT_FINE: "every message is in order",
    command.EXIT_PROBLEMS: "a message has a problem, part of the input could not be read, or the command line is wrong",
    command.EXIT_INTERRUPTED: "interrupted from the keyboard",
    command.EXIT_BROKEN_PIPE: "whoever read the output left",
}
OBJECT_KEYS = {
    "dialect": ("string", "`tap`, `upr-draft`, `upr`, `dcp`, or `kv` for what all dialects share"),
    "message": ("string", "name in the catalogue; `unknown` for an unknown opcode, `unreadable` for no message"),
    "kind": ("string or null", "`request`, `response`, `server_request`, `server_response`; `unknown` without a magic"),
    "opcode": ("number or null", "the opcode"),
    "fields": ("list", "the fields in the order of the bytes, see below"),
    "problems": ("list", "what is wrong: `offset` in the message, and `text` for people; empty when in order"),
    "connection": ("string", "which conversation the message belongs to"),
    "direction": ("string or null", "`c2s` from the client, `s2c` from the server, null where the input does not tell"),
    "origin": ("string", "where in the input the message was found"),
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
    default = re.search(r"\s*\[default: (.*?)\]", text)
    plain = text.replace(default[0], "") if default else text
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
