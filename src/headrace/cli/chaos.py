"""`headrace chaos`: make a node misbehave, to see what a consumer does then.

Its commands, their options and their help are made from the table of faults (`protocol.faults`).
"""

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from headrace.cli.connect import Target, connected, exits, put
from headrace.cli.items import FormatOption, epilog
from headrace.cli.output import OutputFormat
from headrace.protocol.faults import FAULTS, Argument, Fault, Kind

EXAMPLES = {
    "failover": ("headrace chaos failover --vbucket 0 --lost 10",),
    "rollback": ("headrace chaos rollback --vbucket 0,4-7 --to 100", "headrace chaos rollback --vbucket all --to 0"),
    "pause": ("headrace chaos pause",),
    "resume": ("headrace chaos resume",),
    "purge": ("headrace chaos purge", "headrace chaos purge --vbucket 0 --older-than-s 3600"),
    "slow": ("headrace chaos slow --bytes-per-second 10000 --name 'my-consumer*'",),
    "cut": (
        "headrace chaos cut",
        "headrace chaos cut --after-messages 10 --mid-message",
        "headrace chaos cut --after-bytes 100000 --again",
    ),
    "end": ("headrace chaos end --vbucket 0 --reason too_slow",),
    "refuse": (
        "headrace chaos refuse --status temporary_failure --count 3",
        "headrace chaos refuse --status rollback --seqno 0 --vbucket 0",
    ),
    "freeze": ("headrace chaos freeze",),
    "thaw": ("headrace chaos thaw",),
    "calm": ("headrace chaos calm",),
    "show": ("headrace chaos show", "headrace chaos show --output json"),
    "crash": ("headrace chaos crash",),
}
"""Commands as they are typed, for each fault."""

_METAVARS = {
    Kind.NUMBER: "NUMBER",
    Kind.NAMES: "PATTERN",
    Kind.VBUCKETS: "N[,M-O]",
    Kind.STATUS: "STATUS",
    Kind.REASON: "REASON",
}
_OPTIONS = {"vbuckets": ("--vbucket", "--vbuckets")}
"""Options that are called as other commands call them, which take one vbucket or several."""
_TYPES: dict[Kind, type] = {Kind.NUMBER: int, Kind.FLAG: bool}

chaos = typer.Typer(
    help="Make a node misbehave on purpose, to see what a consumer does then. It takes the role admin.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _command(fault: Fault) -> Callable[..., None]:
    """Make the function of one command, with an option for each argument of the fault."""

    def run(*, target: Target, output: OutputFormat = OutputFormat.TEXT, **given: Any) -> None:
        with exits(f"chaos {fault.name}"):
            from headrace.client.chaos import make_trouble  # noqa: PLC0415 - explain needs none of it

            fault.read({name: value for name, value in given.items() if value is not None})
            with target.open() as node:
                effects = make_trouble(node, fault.name, given)
            if output is OutputFormat.JSON:
                put(json.dumps({"fault": fault.name, "effects": effects}).encode() + b"\n")
            else:
                put("".join(f"{line}\n" for line in _told(effects)).encode())

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *(_parameter(argument) for argument in fault.arguments),
        inspect.Parameter("target", keyword, annotation=Target),
        inspect.Parameter("output", keyword, default=OutputFormat.TEXT, annotation=FormatOption),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__name__ = fault.name
    run.__doc__ = _help(fault)
    return connected(run)


def _parameter(argument: Argument) -> inspect.Parameter:
    """The option of an argument."""
    kind = _TYPES.get(argument.kind, str)
    option: Any = typer.Option(
        *_OPTIONS.get(argument.name, (f"--{argument.name.replace('_', '-')}",)),
        metavar=_METAVARS.get(argument.kind),
        help=f"{argument.sentence[0].upper()}{argument.sentence[1:]}.",
        show_default=argument.kind is not Kind.FLAG,
    )
    default: Any = inspect.Parameter.empty if argument.is_needed else argument.default
    annotation: Any = Annotated[kind | None, option] if default is None else Annotated[kind, option]
    return inspect.Parameter(argument.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _help(fault: Fault) -> str:
    details = f"\n\n{fault.details}" if fault.details else ""
    return f"{fault.sentence}{details}\n\nA right consumer {fault.consumer}."


def _told(effects: list[dict[str, Any]]) -> Iterator[str]:
    """What was done, a line for each thing that it was done to."""
    for effect in effects:
        (subject, name), *rest = effect.items()
        yield f"{subject} {name}: {', '.join(f'{key} {value}' for key, value in rest)}"


for _fault in FAULTS.values():
    chaos.command(_fault.name, epilog=epilog(EXAMPLES[_fault.name]))(_command(_fault))
