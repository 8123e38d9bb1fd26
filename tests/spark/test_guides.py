import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark import sessions
from headrace.spark.progress_metrics import BUCKET, MEASURED, PREFIX, QUERY, VBUCKET

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
NOTEBOOK = GUIDES.parents[1] / "examples" / "first_stream.ipynb"
PROGRAM_S_MAX = 240


def blocks(page: str, heading: str) -> list[str]:
    """The programs under a heading of a guide, those that need a process of their own among them."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```py(?:thon)?\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def cells() -> list[str]:
    """The programs of the notebook, as a kernel would get them."""
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_the_one_of_the_guide():
    """It is of format 4.5, holds no output of anybody's run, and has the cells that the guide shows."""
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert found["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in found["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in found["cells"]:
        code: dict[str, object] = {"execution_count": None, "outputs": []} if cell["cell_type"] == "code" else {}
        plain = {name: value for name, value in cell.items() if name not in {"id", "source"}}
        assert plain == {"cell_type": cell["cell_type"], "metadata": {}, **code}
        assert cell["cell_type"] in {"code", "markdown"}
    assert [f"{cell}\n" for cell in cells()] == blocks("spark-session.md", "In a notebook")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "shown"),
    [
        pytest.param(blocks("spark-session.md", "The plain way"), "['event', 'vbucket', 'vbuuid']", id="plain"),
        pytest.param(cells(), '|mutation|airport::SFO|{"city": "San Francisco"}|', id="notebook"),
    ],
)
def test_programs_of_the_session_guide_run(
    spark_command_env: dict[str, str], tmp_path: Path, program: list[str], shown: str
):
    """What the guide shows as a program, and the cells of the notebook, run in a fresh interpreter, and print."""
    environment = {name: value for name, value in spark_command_env.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(program)],
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
