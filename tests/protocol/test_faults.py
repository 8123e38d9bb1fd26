"""The table of faults: every fault is whole, and what it is told is read or refused."""

from __future__ import annotations

import pytest

from headrace.errors import LocalProtocolError
from headrace.protocol.faults import FAULTS, PARAMETER_PREFIX, Argument, Fault, Kind, fault_of

GOOD: dict[Kind, list[tuple[object, object]]] = {
    Kind.NUMBER: [(0, 0), (7, 7), (2**64 - 1, 2**64 - 1)],
    Kind.FLAG: [(True, True), (False, False)],
    Kind.NAMES: [("*", "*"), ("a" * 256, "a" * 256)],
    Kind.VBUCKETS: [
        ("all", "all"),
        (3, (3,)),
        ([4, 1, 4], (1, 4)),
        ((65535,), (65535,)),
        ("0,4-7", (0, 4, 5, 6, 7)),
        (" 2 , 1 ", (1, 2)),
    ],
    Kind.STATUS: [(0x86, 0x86), ("0x86", 0x86), ("temporary_failure", 0x86), ("Not my-vbucket", 7), (65535, 65535)],
    Kind.REASON: [(0, 0), ("ok", 0), ("STATE-CHANGED", 2), ("99", 99), (2**32 - 1, 2**32 - 1)],
}
BAD: dict[Kind, list[object]] = {
    Kind.NUMBER: [-1, True, 1.5, "1", [], 2**64],
    Kind.FLAG: [0, 1, "true", []],
    Kind.NAMES: ["", "a" * 257, 3, []],
    Kind.VBUCKETS: ["", "a", "1-", "-1", "3-1", "1,,2", 65536, -1, True, [], ["1"], [True], {}, "70000", "1-٣"],
    Kind.STATUS: [0, "success", 65536, "nonsense", "", -1, True, 1.0, []],
    Kind.REASON: [-1, 2**32, "nonsense", "", False, 1.0, []],
}


@pytest.mark.parametrize(("kind", "given", "wanted"), [(kind, *one) for kind, some in GOOD.items() for one in some])
def test_what_is_right_is_read(kind: Kind, given: object, wanted: object):
    """Each spelling comes to the one value that the node uses."""
    assert Argument(name="it", kind=kind, sentence="").check(given) == wanted


@pytest.mark.parametrize(("kind", "given"), [(kind, one) for kind, some in BAD.items() for one in some])
def test_what_is_wrong_is_refused(kind: Kind, given: object):
    """The error names the argument, what it may be, and what was given."""
    with pytest.raises(LocalProtocolError, match=r"^it is ") as refused:
        Argument(name="it", kind=kind, sentence="").check(given)
    assert repr(given) in str(refused.value)
    assert kind.value in str(refused.value)


def test_a_number_has_bounds():
    """A bound is told with the refusal."""
    bounded = Argument(name="rate", kind=Kind.NUMBER, sentence="", least=1, most=9)
    assert (bounded.check(1), bounded.check(9)) == (1, 9)
    for wrong in (0, 10):
        with pytest.raises(LocalProtocolError, match=r"^rate is a whole number from 1 to 9, not \d+$"):
            bounded.check(wrong)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_every_fault_is_whole(fault: Fault):
    """It has words for people, is found by its parameter, and its defaults are values that it takes."""
    assert fault.sentence.endswith(".")
    assert fault.consumer
    assert not fault.consumer.endswith(".")
    assert fault_of(fault.parameter) is fault
    needed: dict[str, object] = {argument.name: 1 for argument in fault.arguments if argument.is_needed}
    values = fault.read(needed)
    assert list(values) == [argument.name for argument in fault.arguments]
    for argument in fault.arguments:
        assert argument.sentence
        assert argument.default is None or values[argument.name] == argument.check(argument.default)


def test_arguments_are_read_whole():
    """Defaults fill what is missing; what is needed, and what is not known, is told."""
    failover = FAULTS["failover"]
    assert failover.read({"vbuckets": "0-1"}) == {"vbuckets": (0, 1), "lost": 0}
    with pytest.raises(LocalProtocolError, match="failover needs vbuckets"):
        failover.read({"lost": 3})
    with pytest.raises(LocalProtocolError, match="failover takes no loss: it takes vbuckets, lost"):
        failover.read({"vbuckets": 0, "loss": 3})
    with pytest.raises(LocalProtocolError, match="pause takes no lost: it takes nothing"):
        FAULTS["pause"].read({"lost": 3})


def test_other_parameters_are_no_faults():
    """Only the names of the table, behind their prefix."""
    assert fault_of("max_size") is None
    assert fault_of("failover") is None
    assert fault_of(f"{PARAMETER_PREFIX}explode") is None
