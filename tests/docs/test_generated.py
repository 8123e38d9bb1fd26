import shutil
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.cli import app
from headrace.wire import Dialect, Message, codes
from headrace.wire.registry import RESPONSES
from tests.docs.shown import ROOT
from tools.generate_docs import COMMAND, main, pages
from tools.reference.dialect_pages import ENTRIES
from tools.reference.markdown import GENERATED, picture
from tools.reference.messages import heading, page_of, title

PROTOCOL = ROOT / "docs" / "protocol"


@pytest.fixture
def docs(tmp_path: Path):
    """A copy of the docs that may be changed."""
    return shutil.copytree(ROOT / "docs", tmp_path / "docs")


def test_pages_are_fresh():
    """The pages in the tree are those that the catalogue gives."""
    assert main(["--check"]) == 0


def test_a_changed_page_is_stale(docs: Path, capsys: pytest.CaptureFixture[str]):
    """A check names a page that was edited by hand and the command that mends it, and leaves the page alone."""
    page = docs / "protocol" / "dcp.md"
    page.write_text(page.read_text() + "more\n")
    assert main(["--check", "--docs", str(docs)]) == 1
    told = capsys.readouterr().err
    assert "docs/protocol/dcp.md" in told
    assert COMMAND in told
    assert "upr.md" not in told
    assert page.read_text().endswith("more\n")


def test_a_missing_page_is_stale(docs: Path):
    """A check fails where a page was never written, and writing brings it."""
    (docs / "reference" / "explain.md").unlink()
    assert main(["--check", "--docs", str(docs)]) == 1
    assert main(["--docs", str(docs)]) == 0
    assert main(["--check", "--docs", str(docs)]) == 0


def test_a_page_that_nothing_writes_is_stale(docs: Path):
    """A generated page that is no longer generated is noticed, and removed by writing; others stay."""
    old = docs / "protocol" / "old.md"
    old.write_text(f"{GENERATED} from what was -->\n")
    assert main(["--check", "--docs", str(docs)]) == 1
    assert main(["--docs", str(docs)]) == 0
    assert not old.exists()
    assert (docs / "protocol" / "errata.md").exists()


@pytest.mark.parametrize("name", pages())
def test_pages_say_that_they_are_generated(name: str):
    """Whoever opens a generated page learns from its first line how it is made."""
    first = (ROOT / "docs" / name).read_text().splitlines()[0]
    assert first.startswith(GENERATED)
    assert "src/headrace/" in first or "tests/replay/" in first


@pytest.mark.parametrize("cls", ENTRIES, ids=lambda cls: cls.spec.name)
def test_every_message_has_its_section(cls: type[Message]):
    """A catalogued request stands with its opcode on the page of each dialect that has it, and in the index."""
    for dialect in cls.spec.opcodes:
        page = (PROTOCOL / page_of(cls.spec, dialect)).read_text().splitlines()
        assert f"### {heading(cls.spec, dialect)}" in page
        assert f"0x{cls.spec.opcodes[dialect]:02x}" in heading(cls.spec, dialect)
    assert title(cls.spec).lower() in (PROTOCOL / "README.md").read_text().lower()


@pytest.mark.parametrize("cls", RESPONSES, ids=lambda cls: cls.spec.name)
def test_every_answer_has_its_section(cls: type[Message]):
    """A catalogued answer stands on the page of the answers."""
    assert f"### {title(cls.spec)}" in (PROTOCOL / "responses.md").read_text().splitlines()


def test_every_code_is_listed():
    """Each name of each enum stands on the page of the codes."""
    page = (PROTOCOL / "codes.md").read_text()
    for found in vars(codes).values():
        if isinstance(found, type) and issubclass(found, IntEnum | IntFlag) and list(found):
            assert f"## {found.__name__}" in page
            assert all(f"`{code.name}`" in page for code in found)


def test_every_dialect_is_named_in_the_index():
    """The index links to each dialect's page and to the errata."""
    page = (PROTOCOL / "README.md").read_text()
    assert all(f"({dialect}.md)" in page for dialect in Dialect)
    assert "(errata.md)" in page


def test_every_command_is_documented():
    """Each command has a page in the reference, which names all its options and those of the program."""
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        page = (ROOT / "docs" / "reference" / f"{name}.md").read_text()
        assert f"# headrace {name}" in page
        for parameter in (*command.params, *group.params):
            if parameter.param_type_name == "option":
                assert all(f"`{option}" in page for option in parameter.opts)


def test_pictures_part_fields_that_share_a_row():
    """A picture has a line wherever another field begins, and none within a field."""
    drawn = picture([("one", 1), ("wide", 8), ("two", 2)]).splitlines()[3:]
    assert [line.rstrip() for line in drawn] == [
        "       +---------------+---------------+---------------+---------------+",
        "      0| one           | wide                                          |",
        "       +---------------+               +               +               +",
        "      4|                                                               |",
        "       +               +---------------+---------------+---------------+",
        "      8|               | two                           |",
        "       +---------------+---------------+---------------+",
        "       Total 11 bytes",
    ]
