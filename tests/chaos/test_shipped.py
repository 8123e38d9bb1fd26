"""`headrace.testing` as others use it: names, the fixture, and what it does not need."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import headrace.testing
from headrace.client import NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.testing import LiveNode

TEST = """
import pytest

pytest_plugins = ["headrace.testing.fixtures"]


@pytest.fixture
def headrace_node_options():
    return {"vbuckets": 2}


def test_it(headrace_node, tmp_path):
    assert headrace_node.options.vbuckets == 2
    assert headrace_node.options.data.parent == tmp_path
    headrace_node.write(3)
    assert headrace_node.count() == 3
"""


def test_names_are_there():
    """Every public name can be had, and a wrong one is an AttributeError."""
    for name in headrace.testing.__all__:
        assert getattr(headrace.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'chaos_monkey'"):
        headrace.testing.chaos_monkey  # noqa: B018 - it is the asking that fails


def test_a_program_needs_no_pytest():
    """Without pytest, everything but the fixtures is there."""
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "import headrace, headrace.testing\n"
        "headrace.testing.Chaos, headrace.testing.LiveNode\n"
        "try:\n    import headrace.testing.fixtures\nexcept ImportError:\n    print('no fixtures')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "no fixtures\n"


def test_chaos_needs_no_node():
    """Who makes trouble from afar has none of the node's libraries loaded."""
    code = "import sys, headrace.testing; headrace.testing.Chaos; print('lmdb' in sys.modules, 'uvloop' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


@pytest.mark.slow
def test_the_fixture_is_had_by_its_name(tmp_path: Path):
    """A project that names the plugin has the fixture, and may say how the node is started."""
    (tmp_path / "test_it.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


def test_helpers_write_delete_and_count(node: LiveNode):
    """Items of a mapping or by a number, removed by their keys; each change says where it stands."""
    written = node.write({"a": {"x": 1}, "b": "text", "c": b"\xff"})
    assert [one.key for one in written] == ["a", "b", "c"]
    assert all(node.high_seqnos()[one.vbucket] >= one.seqno for one in written)
    assert (node.get("a"), node.get("b"), node.get("c")) == (b'{"x": 1}', b"text", b"\xff")
    node.write(10, prefix="n-")
    assert node.count() == 13
    (gone,) = node.delete("a")
    assert gone.seqno > written[0].seqno
    assert node.count() == 12
    with pytest.raises(NotFoundError):
        node.get("a")
    node.flush()
    node.stop()
    node.start()
    assert node.count() == 12
