"""A password that a job was given is nowhere that people look: plan, pages, checkpoint, event log, output."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from headrace.client import KvConnection
from tests.processes import start_node
from tests.spark.conftest import spark_conf, spark_home
from tests.spark.faults.jobs import Job
from tests.spark.faults.queries import connection_to

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.processes import Server

USER, PASSWORD, WRONG = "ann", "Zwetschgen-Kuchen-4711", "Mirabellen-Mus-0815"
PAGES = (
    "/jobs/",
    "/stages/",
    "/environment/",
    "/executors/",
    "/SQL/",
    "/StreamingQuery/",
    "/api/v1/applications",
    "/api/v1/applications/{app}/environment",
    "/api/v1/applications/{app}/sql?details=true&planDescription=true&length=100",
    "/api/v1/applications/{app}/jobs",
    "/api/v1/applications/{app}/stages?details=true",
)


def spellings(password: str) -> list[bytes]:
    """A password as it is, in hex and in base64, whatever stands before it."""
    plain = password.encode()
    encoded = [base64.b64encode(b"." * shift + plain)[4:-4] for shift in range(3)]
    return [plain, plain.hex().encode(), *encoded]


def start_closed_node(folder: Path) -> Server:
    """Start a node that wants a password."""
    users = folder / "users.json"
    command = [sys.executable, "-m", "headrace", "user", "add", USER, "--users", str(users), "--role", "admin"]
    environment = {**os.environ, "ANN": PASSWORD}
    subprocess.run([*command, "--password-env", "ANN"], env=environment, check=True, capture_output=True)
    node = start_node("--vbuckets", "4", "--users", str(users), "--data", str(folder / "data"))
    with KvConnection(node.host, node.port, username=USER, password=PASSWORD) as items:
        for number in range(100):
            items.set(b"key-%d" % number, b"x")
    return node


def pages_of(job: Job) -> dict[str, bytes]:
    """What Spark's pages and its REST routes say, with the page of each query that ran."""
    found: dict[str, bytes] = {}

    def fetch(path: str) -> bytes:
        with urlopen(job.pages + path, timeout=20) as opened:
            found[path] = opened.read()
        return found[path]

    app = json.loads(fetch("/api/v1/applications"))[0]["id"]
    for path in PAGES:
        fetch(path.format(app=app))
    runs = json.loads(found[f"/api/v1/applications/{app}/sql?details=true&planDescription=true&length=100"])
    for run in runs:
        fetch(f"/SQL/execution/?id={run['id']}")
    assert runs
    streams = set(re.findall(r"statistics/\?id=([0-9a-f-]{36})", found["/StreamingQuery/"].decode()))
    assert len(streams) == 2, "the query, and the one with a wrong password"
    for stream in streams:
        fetch(f"/StreamingQuery/statistics/?id={stream}")
    return found


def search(seen: Mapping[str, bytes]) -> None:
    """Look for the passwords."""
    for place, text in seen.items():
        for spelling in (*spellings(PASSWORD), *spellings(WRONG)):
            assert spelling not in text, f"the password is in {place}"


def files_of(folder: Path) -> dict[str, bytes]:
    """All files of a folder, and what is in them."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "master"),
    [("password", "local-cluster[2,1,512]"), ("passwordEnv", "local[2]"), ("passwordFile", "local[2]")],
)
def test_a_password_is_nowhere(tmp_path: Path, spark_command_env: dict[str, str], way: str, master: str):
    """However it was told, at log level INFO, with pages and event log on, written with, and over errors too."""
    secret_file = tmp_path.with_name(f"{tmp_path.name}-secret")
    secret_file.write_text(PASSWORD + "\n")
    node = start_closed_node(tmp_path)
    told = {"password": PASSWORD, "passwordEnv": "ANNS_PASSWORD", "passwordFile": str(secret_file)}
    options = {"connection": connection_to(node), "username": USER, way: told[way]}
    wrong = {"connection": connection_to(node), "username": USER, "password": WRONG}
    home = spark_home(tmp_path)
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        **spark_conf(tmp_path),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.log.level": "INFO",
        "spark.executor.memory": "512m",
    }
    environment = {
        **spark_command_env,
        "SPARK_HOME": str(home),
        **({"ANNS_PASSWORD": PASSWORD} if way == "passwordEnv" else {}),
    }
    seen: dict[str, bytes] = {}
    try:
        with Job(tmp_path, options, environment, conf, master=master, wrong=wrong) as job:
            job.until_rows(101)
            seen |= pages_of(job)
            node.kill()  # what is said over a node that is away counts too
            node.start()
            job.stop()
        seen["output"] = job.printed.encode()
    finally:
        if node.running:
            node.kill()
        seen["node"] = node.said.encode()
        node.close()
    assert b"== Physical Plan ==" in seen["output"]
    assert seen["output"].count(b"not authenticated") >= 2
    assert bool([*home.glob("work/*/*/stderr")]) == (master != "local[2]")
    assert b"INFO" in (tmp_path / "log.txt").read_bytes()
    assert any(events.iterdir())
    assert any((tmp_path / "checkpoint" / "offsets").iterdir())
    search(seen | files_of(tmp_path))
    secret_file.unlink()
