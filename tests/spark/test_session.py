import logging
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.spark import DcpSource, TapSource, register, session, sessions
from headrace.spark.java import Java
from headrace.spark.sessions import SessionError
from headrace.testing import LiveNode

PROGRAM_S_MAX = 180
NOTHING: Mapping[str, str] = MappingProxyType({})


def run(program: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program in an interpreter of its own, with a Spark of its own."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S_MAX,
        check=False,
    )


def without(environment: dict[str, str], *names: str) -> dict[str, str]:
    """An environment in which these are not set."""
    return {name: value for name, value in environment.items() if name not in names}


FIRST = """
import os, sys
from pyspark import SparkContext
from headrace.spark import session

spark = session(master="local[2]", conf={"spark.driver.memory": "1g"})
print("python", spark.sparkContext.pythonExec == sys.executable, "PYSPARK_PYTHON" in os.environ)
print("ui", spark.sparkContext.uiWebUrl)
print("timeZone", spark.conf.get("spark.sql.session.timeZone"))
folder = spark.conf.get("spark.python.unix.domain.socket.dir", "")
print("sockets", any(name.endswith(".sock") for name in os.listdir(folder)))
print("partitions", spark.conf.get("spark.sql.shuffle.partitions"))
rows = spark.read.format("dcp").option("connection", sys.argv[1]).load().where("seqno = 1 and vbucket = 0")
print("rows", rows.count())
java = SparkContext._gateway.proc.pid
links = [os.readlink(f"/proc/{java}/fd/{each}") for each in os.listdir(f"/proc/{java}/fd")]
sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
rows = [line.split() for kind in ("tcp", "tcp6") for line in list(open(f"/proc/{java}/net/{kind}"))[1:]]
listens = [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets]
print("listens", len(listens) >= 3, set(listens) <= {"0100007F", "0000000000000000FFFF00000100007F"})
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_a_session_needs_nothing_from_its_environment(spark_command_env: dict[str, str]):
    """With no variable set, a session finds Java, runs its own Python, reads a bucket, is quiet and on loopback."""
    unset = ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP", "VIRTUAL_ENV", "TMPDIR")
    environment = without(spark_command_env, *unset)
    with LiveNode(vbuckets=1) as node:
        node.write(3)
        done = run(FIRST, environment, node.connection_string)
    first, ui, *rest = done.stdout.splitlines()
    assert first == "python True False"
    assert re.fullmatch(r"ui http://127\.0\.0\.1:\d+", ui)
    assert rest == ["timeZone UTC", "sockets True", "partitions 8", "rows 1", "listens True True"]
    noise = [line for line in done.stderr.splitlines() if "incubator" not in line and "SparkUI" not in line]
    assert noise == []


NO_JAVA = "from headrace.spark import session\nsession()"


def test_no_java_is_told_before_anything_starts(spark_command_env: dict[str, str], tmp_path: Path):
    """Without a Java, the last line of what a program prints is the sentence that says what to install."""
    program = f"""
import headrace.spark.java as java
java.find_java.__kwdefaults__["folders"] = ()
{NO_JAVA}
"""
    environment = {**without(spark_command_env, "JAVA_HOME"), "PATH": str(tmp_path)}
    done = run(program, environment)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "headrace.spark.java.JavaError: Spark needs Java 17 or later, and there is none here: install"
    )
    assert done.returncode == 1


def test_a_java_that_ends_at_once_is_told(spark_command_env: dict[str, str]):
    """Where Java starts and ends again, the error says so, and that what it printed says why."""
    wrong = {"spark.driver.extraJavaOptions": "-Xmx1m"}
    done = run(f"from headrace.spark import session\nsession(conf={wrong})", spark_command_env)
    assert "Not allowed to specify max heap" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("headrace.spark.sessions.SessionError: Spark's Java process ended")
    assert done.stderr.count("Traceback") == 1


def test_what_the_caller_gives_wins(monkeypatch: pytest.MonkeyPatch):
    """Every setting of a new session can be given another value, the worker's Python and Java's options included."""
    seen = started_with(
        monkeypatch,
        master="local[3]",
        conf={
            "spark.sql.session.timeZone": "Europe/Berlin",
            "spark.driver.host": "192.0.2.1",
            "spark.sql.shuffle.partitions": 7,
            "spark.ui.enabled": False,
            "spark.pyspark.python": "/opt/python",
            "spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine",
        },
    )
    assert seen.settings["spark.sql.session.timeZone"] == "Europe/Berlin"
    assert seen.settings["spark.driver.host"] == "192.0.2.1"
    assert seen.settings["spark.sql.shuffle.partitions"] == "7"
    assert seen.settings["spark.ui.enabled"] == "false"
    assert seen.settings["spark.driver.extraJavaOptions"] == "-Dlog4j2.configurationFile=mine"
    assert seen.environment["PYSPARK_PYTHON"] == "/opt/python"
    assert seen.settings["spark.driver.bindAddress"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("master", "partitions"),
    [("local", 4), ("local[3]", 12), ("local[2,4]", 8), ("local-cluster[2,3,1024]", 24), ("local[*]", 0)],
)
def test_a_local_master_is_for_this_machine(monkeypatch: pytest.MonkeyPatch, master: str, partitions: int):
    """A local master has partitions by its cores, stays on loopback, and runs the interpreter that asked."""
    seen = started_with(monkeypatch, master=master)
    assert seen.settings["spark.sql.shuffle.partitions"] == str(partitions or 4 * (os.cpu_count() or 1))
    assert seen.settings["spark.driver.host"] == "127.0.0.1"
    assert seen.environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert seen.environment["PYSPARK_PYTHON"] == sys.executable


def test_without_a_word_the_master_is_local(monkeypatch: pytest.MonkeyPatch):
    """Without a master here or elsewhere, all cores of this machine are used."""
    assert started_with(monkeypatch).settings["spark.master"] == "local[*]"


@pytest.mark.parametrize("variable", ["SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "MASTER"])
def test_a_master_that_is_said_elsewhere_is_left(monkeypatch: pytest.MonkeyPatch, variable: str):
    """Where the environment may name the master, it is not overridden, and nothing is bound to loopback."""
    monkeypatch.setenv(variable, "x")
    seen = started_with(monkeypatch)
    assert "spark.master" not in seen.settings
    assert "spark.driver.host" not in seen.settings
    assert seen.settings["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.parametrize(
    ("master", "python"), [("spark://host:7077", sys.executable), ("yarn", None), ("k8s://x", None)]
)
def test_a_cluster_has_its_own_python(monkeypatch: pytest.MonkeyPatch, master: str, python: str | None):
    """Workers of a standalone cluster run the path of the driver's Python; where images and archives rule, theirs."""
    seen = started_with(monkeypatch, master=master)
    assert seen.environment.get("PYSPARK_PYTHON") == python
    assert "spark.driver.bindAddress" not in seen.settings
    assert "SPARK_LOCAL_IP" not in seen.environment


def test_variables_of_the_caller_stay(monkeypatch: pytest.MonkeyPatch):
    """A PYSPARK_PYTHON and a SPARK_LOCAL_IP that are set are used, and the environment is afterwards what it was."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
    monkeypatch.setenv("SPARK_LOCAL_IP", "192.0.2.7")
    before = dict(os.environ)
    seen = started_with(monkeypatch, keep=("PYSPARK_PYTHON", "SPARK_LOCAL_IP"))
    assert seen.environment["PYSPARK_PYTHON"] == "/their/python"
    assert seen.environment["SPARK_LOCAL_IP"] == "192.0.2.7"
    assert seen.environment["JAVA_HOME"] == "/a/java"
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("(?i)secret|password", "(?i)secret|password"),
        ("(?i)token", "(?:(?i)token)|(?i:password)"),
        (r"\p{javaLowerCase}+key", r"(?:\p{javaLowerCase}+key)|(?i:password)"),
    ],
)
def test_passwords_stay_hidden(monkeypatch: pytest.MonkeyPatch, given: str, used: str):
    """A rule of the caller for what Spark hides is kept, and widened where it would show passwords."""
    assert started_with(monkeypatch, conf={"spark.redaction.regex": given}).settings["spark.redaction.regex"] == used
    assert "spark.redaction.regex" not in started_with(monkeypatch).settings


def test_rows_go_through_sockets_that_are_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A local session has Unix sockets in a folder for the user alone, but not where the path would be too long."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        settings = started_with(monkeypatch, temporary=None).settings
        folder = Path(settings["spark.python.unix.domain.socket.dir"])
        assert settings["spark.python.unix.domain.socket.enabled"] == "true"
        assert folder.parent == Path(short)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        refused = started_with(monkeypatch, temporary=None, conf={"spark.python.unix.domain.socket.enabled": False})
        assert refused.settings["spark.python.unix.domain.socket.enabled"] == "false"
        assert "spark.python.unix.domain.socket.dir" not in refused.settings
        cluster = started_with(monkeypatch, temporary=None, master="spark://host:7077").settings
    assert not [name for name in cluster if "socket" in name]
    assert not [name for name in started_with(monkeypatch, temporary=tmp_path).settings if "socket" in name]


def test_java_options_are_added_to(monkeypatch: pytest.MonkeyPatch):
    """Options for Java that do not speak of logging are kept beside those that make the driver quiet."""
    options = started_with(monkeypatch, conf={"spark.driver.extraJavaOptions": "-Xss4m"}).settings[
        "spark.driver.extraJavaOptions"
    ]
    assert re.fullmatch(r'-Xss4m "-Dlog4j2\.configurationFile=file:///.+/log4j2\.properties"', options)


class Started:
    """What a session would have been started with."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.registered = False


def started_with(
    monkeypatch: pytest.MonkeyPatch,
    *,
    keep: tuple[str, ...] = (),
    java: Mapping[str, str] = NOTHING,
    temporary: Path | None = Path("/nowhere"),
    **given: Any,
) -> Started:
    """Ask for a session up to the moment at which Spark would start, and give what was decided by then."""
    if temporary is not None:
        monkeypatch.setattr(tempfile, "tempdir", f"{temporary}/{'x' * 100}")
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP", "SPARK_REMOTE"):
        if name not in keep:
            monkeypatch.delenv(name, raising=False)
    seen = Started()

    def start(settings: dict[str, str]):
        seen.settings, seen.environment = dict(settings), {**os.environ, **java}
        system = SimpleNamespace(getenv=seen.environment.get)
        return SimpleNamespace(
            sparkContext=SimpleNamespace(
                _jvm=SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
            )
        )

    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(sessions, "_start", start)
    monkeypatch.setattr(sessions, "find_java", lambda: Java(home=Path("/a/java"), version=17, has_vectors=True))
    monkeypatch.setattr(sessions, "register", lambda _: setattr(seen, "registered", True))
    session(**given)
    return seen


def test_formats_are_registered_where_spark_would_not_find_them(monkeypatch: pytest.MonkeyPatch):
    """A session registers the formats by itself where Spark's search by module names would pass them."""
    assert not started_with(monkeypatch).registered
    assert started_with(monkeypatch, java={"PYSPARK_PYTHON": "/usr/bin/other"}).registered
    assert started_with(monkeypatch, java={"PYSPARK_DRIVER_PYTHON": "/usr/bin/other"}).registered
    monkeypatch.setattr("pkgutil.iter_modules", list)
    assert started_with(monkeypatch).registered


def test_spark_connect_is_told(monkeypatch: pytest.MonkeyPatch):
    """A session of Spark Connect is refused with the way to have one."""
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    asked: list[dict[str, Any]] = [{"master": "sc://host"}, {"conf": {"spark.remote": "sc://host"}}]
    for given in asked:
        with pytest.raises(SessionError, match=r"SparkSession\.builder\.remote.*headrace\.spark\.register"):
            session(**given)
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(SessionError, match="does not speak Spark Connect"):
        session()


def test_an_old_pyspark_is_told(monkeypatch: pytest.MonkeyPatch):
    """A pyspark without admission control for Python sources is refused with the version that has it."""
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(SessionError, match=r"needs pyspark 4\.2 or later, not 4\.1\.2"):
        session()


def test_a_missing_pyspark_is_told(monkeypatch: pytest.MonkeyPatch):
    """Without pyspark the error names the extra that brings it."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(HeadraceError, match=r"pip install 'headrace\[spark\]'"):
        session()


def test_a_running_session_is_given_again(spark: SparkSession, caplog: pytest.LogCaptureFixture):
    """A second call gives the session that runs, changes what can be changed, and logs what can not, once each."""
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        with caplog.at_level(logging.WARNING, "headrace.spark"):
            again = session(
                master="local[7]",
                conf={
                    "spark.sql.shuffle.partitions": 3,
                    "spark.driver.memory": "3g",
                    "spark.executor.token.x": "hush-hush",
                },
            )
        assert again.sparkContext is spark.sparkContext
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
        assert [record.getMessage() for record in caplog.records] == [
            "setting spark.driver.memory is 1g and stays in the Spark session that is running: call spark.stop() first",
            "setting spark.executor.token.x stays in the Spark session that is running: call spark.stop() first",
            "setting spark.master is local[2] and stays in the Spark session that is running: call spark.stop() first",
        ]
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", partitions or "2")


def test_a_running_session_without_a_word_is_left_in_peace(spark: SparkSession, caplog: pytest.LogCaptureFixture):
    """A second call that asks for nothing in particular logs nothing."""
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        session()
    assert caplog.records == []
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


FOREIGN = """
import logging, os, sys
from pyspark.sql import SparkSession

logging.basicConfig(format="%(message)s", stream=sys.stdout)
other = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
from headrace.spark import session

spark = session()
print(spark.read.format("dcp").option("connection", sys.argv[1]).load().count())
"""


@pytest.mark.slow
def test_a_foreign_session_gets_the_right_python(spark_command_env: dict[str, str], tmp_path: Path):
    """In a session that was started without the environment's Python, workers run it from then on, with a word."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.base_prefix + "/bin/python3")
    environment = without(spark_command_env, "PYSPARK_PYTHON", "VIRTUAL_ENV")
    environment["PATH"] = f"{tmp_path / 'bin'}:{environment['PATH']}"
    with LiveNode(vbuckets=1) as node:
        node.write(3)
        done = run(FOREIGN, environment, node.connection_string)
    said, count = done.stdout.splitlines()
    assert said == (
        f"the workers of the running Spark session would run {tmp_path}/bin/python3: they run {sys.executable} now"
    ), done.stderr
    assert count == "3"


def test_register_brings_both_formats(spark: SparkSession):
    """A session that was told the formats has both, also where Spark had found them already."""
    register(spark)
    assert {DcpSource.name(), TapSource.name()} == {"dcp", "tap"}
    assert spark.read.format("dcp").option("connection", "couchbase://127.0.0.1:1").load().columns[0] == "event"


@pytest.mark.slow
def test_passwords_are_hidden_in_plans(spark: SparkSession):
    """A password that is given as an option is in no plan that Spark shows."""
    frame = spark.read.format("dcp").options(username="u", password="hush-hush", connection="couchbase://127.0.0.1:1")
    shown = frame.load()._jdf.queryExecution().logical().toString()
    assert "hush-hush" not in shown
