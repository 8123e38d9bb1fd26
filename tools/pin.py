"""Write constraints.txt: the versions that pip resolves today for `.[dev]` and the build.

Names and versions only. A lock file would also name the host that served each file, and that
differs between machines (docs/decisions/0002). Run by `make pins`; nothing is installed.

The resolution is made on one platform. A package that only another platform needs stays unpinned.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ["hatchling", "editables", "setuptools", "wheel"]  # our build, and that of pyspark, which has no wheel
HEADER = "# Written by `make pins`. Exact versions for `.[dev]` and the build; pip reads them with -c.\n"


def resolve() -> dict[str, str]:
    """Ask pip what it would install into an empty environment."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), f"{ROOT}[dev]", *BUILD], check=True)
        installs = json.loads(report.read_text())["install"]
    found = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in installs}
    del found["headrace"]
    return found


if __name__ == "__main__":
    lines = [f"{name}=={version}\n" for name, version in sorted(resolve().items())]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines))
    print(f"constraints.txt: {len(lines)} versions")
