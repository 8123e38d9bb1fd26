import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark import sessions
from headrace.spark.progress_metrics import BUCKET, MEASURED, PREFIX, QUERY, VBUCKET

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
PROGRAM_S_MAX = 240


def blocks(page: str, heading: str) -> list[str]:
    """The programs under a heading of a guide, those that need a process of their own among them."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```py(?:thon)?\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heading", "shown"),
    [
        ("The plain way", "['event', 'vbucket', 'vbuuid']"),
        ("In a notebook", '|mutation|airport::SFO|{"city": "San Francisco"}|'),
    ],
)
def test_programs_of_the_session_guide_run(spark_command_env: dict[str, str], tmp_path: Path, heading: str, shown: str):
    """What the guide shows as a program, or as cells one after the other, runs in a fresh interpreter, and prints."""
    environment = {name: value for name, value in spark_command_env.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks("spark-session.md", heading))],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_every_metric_is_in_the_guide():
    """Each metric of a listener, and the field of the snapshot that it comes from, is in the guide."""
    page = (GUIDES / "watch-a-query.md").read_text(encoding="utf-8")
    assert f"`{PREFIX}`" in page
    for shown in (*QUERY, *BUCKET, *MEASURED):
        assert f"| `{shown.field}` | `{shown.name}{'_total' if shown.is_counter else ''}` |" in page
    for shown in VBUCKET:
        assert f"`{shown.name}`" in page


def test_every_setting_is_in_the_guide():
    """Each setting that a session makes is in the guide."""
    page = (GUIDES / "spark-session.md").read_text(encoding="utf-8")
    bound = {"spark.driver.bindAddress"}  # goes with spark.driver.host
    for name in {*sessions._SETTINGS, *sessions._LOCAL_SETTINGS} - bound:
        assert name in page
