"""`headrace demo` as a user runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.demo_data import Airline

HEADRACE = (sys.executable, "-m", "headrace", "demo")


@pytest.mark.slow
def test_the_demo_ends_equal(spark_command_env: dict[str, str]):
    """It shows every step, loses changes on the way, and the table ends equal to the bucket."""
    done = subprocess.run(
        [*HEADRACE, "--exit", "--documents", "500"],
        capture_output=True,
        text=True,
        env=spark_command_env,
        stdin=subprocess.DEVNULL,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for step in range(1, 8):
        assert f" {step}. " in done.stdout
    lost = re.search(r"without ([\d,]+) changes", done.stdout)
    back = re.search(r"(\d+) vbuckets were rolled back", done.stdout)
    assert lost is not None
    assert back is not None
    assert int(lost[1].replace(",", "")) > 0
    assert int(back[1]) > 0
    assert "equal: " in done.stdout


def test_a_folder_that_is_in_use(tmp_path: Path):
    """What is there already is not touched, and the sentence says what to give."""
    (tmp_path / "mine").write_text("mine")
    done = subprocess.run([*HEADRACE, "--folder", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{tmp_path} is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_no_java(tmp_path: Path):
    """It is told at once, before anything is started."""
    env = {**os.environ, "JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    done = subprocess.run([*HEADRACE, "--exit"], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    assert "Java" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_airline_is_drawn_from_its_seed():
    """Two airlines of one seed have one day."""
    one, two = Airline(50, seed=3), Airline(50, seed=3)
    assert list(one.documents()) == list(two.documents())
    changes = [one.change() for _ in range(200)]
    assert changes == [two.change() for _ in range(200)]
    assert any(value is None for _, value in changes)
