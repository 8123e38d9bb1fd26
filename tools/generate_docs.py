"""Write the reference pages, or with --check say which are stale.

Everything on these pages comes from the catalogue, the codes and the command line of the package itself, and from the
tests' table of differences; the modules in tools/reference turn that into Markdown. `make docs` writes, `make test`
checks.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script finds modules beside itself only

from headrace.wire.dialects import Dialect
from tools.reference.codes_page import codes_page
from tools.reference.command_page import explain_page
from tools.reference.dialect_pages import dialect_page, index, kv_page, responses_page
from tools.reference.differences_page import differences_page
from tools.reference.header_page import header_page
from tools.reference.markdown import GENERATED
from tools.reference.node_page import node_page
from tools.reference.plain_commands import plain_command_pages
from tools.reference.python_page import python_page
from tools.reference.rows_page import rows_page
from tools.reference.spark_page import spark_page
from tools.reference.stats_page import stats_page
from tools.reference.testing_page import testing_page

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "make docs"
GENERATED_IN = ("protocol", "reference")


def pages() -> dict[str, str]:
    """Every generated page by its path under docs/."""
    return {
        "protocol/README.md": index(),
        **{f"protocol/{dialect}.md": dialect_page(dialect) for dialect in Dialect},
        "protocol/kv.md": kv_page(),
        "protocol/responses.md": responses_page(),
        "protocol/header.md": header_page(),
        "protocol/codes.md": codes_page(),
        "reference/explain.md": explain_page(),
        "reference/differences.md": differences_page(),
        "reference/rows.md": rows_page(),
        "reference/node.md": node_page(),
        "reference/stats.md": stats_page(),
        "reference/python.md": python_page(),
        "reference/testing.md": testing_page(),
        "reference/spark-options.md": spark_page(),
        **plain_command_pages(),
    }


def stale(docs: Path, fresh: Mapping[str, str]) -> list[str]:
    """The pages that differ from what would be written, and those that nothing writes any more."""
    differing = [name for name, text in fresh.items() if _text(docs / name) != text]
    return sorted([*differing, *(name for name in _generated(docs) if name not in fresh)])


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _generated(docs: Path) -> list[str]:
    found = (path for folder in GENERATED_IN for path in (docs / folder).glob("*.md"))
    return [path.relative_to(docs).as_posix() for path in found if _text(path).startswith(GENERATED)]


def write(docs: Path, fresh: Mapping[str, str]) -> None:
    """Bring the pages up to date; a page that nothing writes any more is removed."""
    for name in stale(docs, fresh):
        path = docs / name
        if name not in fresh:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fresh[name], encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1 when a check finds a stale page."""
    parser = argparse.ArgumentParser(description="Write the generated reference pages.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name the pages that are stale")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the docs folder (default: the project's)")
    options = parser.parse_args(arguments)
    fresh = pages()
    if not options.check:
        write(options.docs, fresh)
        return 0
    found = stale(options.docs, fresh)
    for name in found:
        print(f"docs/{name} is stale; run `{COMMAND}`", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
