"""What the Markdown files of the project show: links, headings, programs, and commands with their output."""

import re
from collections.abc import Iterator
from pathlib import Path

from tools.reference.markdown import anchor

ROOT = Path(__file__).resolve().parents[2]
_SKIPPED = frozenset({"build", "dist", "htmlcov", "node_modules"})
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_NAMED = re.compile(r'<a (?:id|name)="([^"]+)">')
_PRINTS = re.compile(r"\s*It prints:\s*```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def markdown_files() -> list[Path]:
    """Every Markdown file of the project; what is hidden or built is not of it."""
    return sorted(path for path in ROOT.rglob("*.md") if not _is_skipped(path.relative_to(ROOT).parts))


def _is_skipped(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") or part in _SKIPPED for part in parts)


def links(path: Path) -> list[str]:
    """The targets of all links, outside of code."""
    prose = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", path.read_text(encoding="utf-8")))
    return _LINK.findall(prose)


def anchors(path: Path) -> set[str]:
    """The places within a page that a link may name, as GitHub names them: a second one gets a number."""
    seen: dict[str, int] = {}
    prose = _FENCE.sub("", path.read_text(encoding="utf-8"))
    found = set(_NAMED.findall(prose))
    for heading in _HEADING.findall(prose):
        name = anchor(re.sub(r"[`*]|\]\([^)]*\)", "", heading))
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return found


def programs(path: Path) -> Iterator[tuple[str, str | None]]:
    """Each Python block, with the output that the page shows for it."""
    text = path.read_text(encoding="utf-8")
    for block in _FENCE.finditer(text):
        if block[1] == "python":
            shown = _PRINTS.match(text, block.end())
            yield block[2], shown[1] if shown else None


def sessions(path: Path) -> Iterator[tuple[str, str]]:
    """Each `console` block, as commands (a shell script) and all that they print."""
    for block in _FENCE.finditer(path.read_text(encoding="utf-8")):
        lines = block[2].splitlines()
        commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        runnable = [command for command in commands if not command.startswith(("make ", "source "))]
        if block[1] == "console" and runnable:
            yield "\n".join(runnable), "".join(f"{line}\n" for line in lines if not line.startswith("$ "))
