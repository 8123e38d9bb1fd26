"""A thousand seeds of the simulation, in chunks, so that they are shared among workers. A failure prints its seed.

Each chunk has a process of its own: measured for coverage, a thousand seeds would take several times as long.
"""

import os
import subprocess
import sys

import pytest

SEEDS = 1000
CHUNK = 40
CHUNK_S_MAX = 300


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nothing_is_broken_whatever_goes_wrong(first: int):
    """Copies equal their owners, nothing durable is lost, seqnos grow, and nobody applies half a snapshot."""
    ran = subprocess.run(
        [sys.executable, "-m", "headrace.testing.sim", "--seeds", f"{first}-{first + CHUNK - 1}"],
        env={name: value for name, value in os.environ.items() if not name.startswith("COV")},
        capture_output=True,
        text=True,
        check=False,
        timeout=CHUNK_S_MAX,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
