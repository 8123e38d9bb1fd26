"""docs/reference/testing.md: the faults, how they are asked for, and `headrace.testing`."""

from collections.abc import Iterator

from headrace.protocol.faults import FAULTS, Argument, Fault, Kind
from headrace.testing import Chaos, GoneBack, LiveNode, Written
from headrace.wire.catalogue import SetParam
from headrace.wire.dialects import Dialect
from tools.reference.attributes import field_sentences
from tools.reference.markdown import anchor, fenced, link, page, table
from tools.reference.messages import heading
from tools.reference.python_page import _attributes, _methods, _prose, _signature

SOURCE = "src/headrace/protocol/faults.py and the docstrings in src/headrace/testing"

_TYPES = {
    Kind.NUMBER: "number",
    Kind.FLAG: "boolean",
    Kind.NAMES: "string",
    Kind.VBUCKETS: "number, list or string",
    Kind.STATUS: "number or string",
    Kind.REASON: "number or string",
}


def testing_page() -> str:
    """The whole page."""
    there = f"../protocol/kv.md#{anchor(heading(SetParam.spec, Dialect.DCP))}"
    return page(
        "Faults, and Python for tests",
        SOURCE,
        "What a node can be told to do to its consumers, and what `headrace.testing` has for tests of them. To do: "
        "[test a consumer](../guides/test-a-consumer.md). From a shell: [headrace chaos](chaos.md).",
        "## Faults",
        table(["fault", "what it does", "a right consumer"], map(_fault_row, FAULTS.values())),
        "## On the wire",
        f"A fault is asked for by {link('set param (0x82)', there)}: the key is the parameter, the value a JSON object "
        "of the arguments, the type is not looked at. It takes the role `admin`, and works on the bucket that is "
        "selected. The answer is a JSON object with the `fault` and a list of `effects`; `crash` is not answered. 0x04 "
        "says that an argument is wrong, 0x01 that there is no such parameter, connection or stream, 0x07 no such "
        "vbucket. Statuses and reasons go by their [numbers or names](../protocol/codes.md).",
        table(["parameter", "argument", "type", "default", "what it is"], _argument_rows()),
        *_class_parts(Chaos),
        "## GoneBack",
        _prose(GoneBack),
        table(["field", "what it is"], _fields(GoneBack)),
        _attributes(GoneBack),
        *_class_parts(LiveNode),
        "## Written",
        _prose(Written),
        "## Fixtures",
        '`pytest_plugins = ["headrace.testing.fixtures"]` in a `conftest.py` brings `headrace_node`, a `LiveNode` in a '
        "fresh directory for each test, and `headrace_node_options`, which a project may override: a dictionary of "
        "what `headrace.Node` takes.",
    )


def _fault_row(fault: Fault) -> list[str]:
    return [link(f"`{fault.name}`", f"chaos.md#headrace-chaos-{fault.name}"), fault.sentence, f"{fault.consumer}."]


def _argument_rows() -> Iterator[list[str]]:
    for fault in FAULTS.values():
        for argument in fault.arguments or (None,):
            yield [f"`{fault.parameter}`", *_argument_cells(argument)]


def _argument_cells(argument: Argument | None) -> list[str]:
    if argument is None:
        return ["", "", "", "it takes none"]
    default = "" if argument.default is None else f"`{argument.default}`".lower()
    needed = " It must be given." if argument.is_needed else ""
    return [f"`{argument.name}`", _TYPES[argument.kind], default, f"{argument.sentence}.{needed}"]


def _fields(cls: type) -> Iterator[list[str]]:
    sentences = field_sentences(cls)
    for name in cls._fields:  # type: ignore[attr-defined]  # a named tuple
        yield [f"`{name}`", sentences.get(name, "")]


def _class_parts(cls: type) -> Iterator[str]:
    yield f"## {cls.__name__}"
    if cls is Chaos:
        yield fenced(_signature(cls, cls.__name__), "text")
    yield _prose(cls)
    if cls is LiveNode:
        yield _attributes(cls)
    yield from _methods(cls)
