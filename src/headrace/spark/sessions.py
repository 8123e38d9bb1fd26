"""A Spark session that is set up for the formats `dcp` and `tap`: `session()`, and `register()` for one of your own.

What it takes care of, and why:

- Java is found, and where there is none that does, one sentence says what to install (headrace.spark.java).
- Workers run the Python that runs the driver. Spark starts `python3` of PATH otherwise, in which a virtual environment
  has no part; `spark.pyspark.python` in a builder changes nothing there, only the variable PYSPARK_PYTHON does.
- With a local master nothing listens on the network: driver, block manager and UI stay on loopback.
- With a local master, rows go between Java and Python through Unix sockets in a folder that only the user can enter:
  1.4 to 1.8 times as fast as over TCP, Spark's default, with ready-made batches of rows of 256 bytes in three
  alternating pairs, on a busy machine of two cores.
- With a local master, a micro-batch takes 125 ms where it took 170: Spark's default manager of checkpoints has Hadoop
  run `readlink`, several times for each file.
- Timestamps are read and shown in UTC, as `changed_at` means them.
- Filters reach the source in a batch read, which Spark leaves off.

What the caller gives in `conf` wins over all of it.
"""

from __future__ import annotations

import atexit
import logging
import os
import pkgutil
import re
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

log = logging.getLogger("headrace.spark.sessions")

PYSPARK_MIN = (4, 2)
_LOOPBACK = "127.0.0.1"
_ELSEWHERE = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "MASTER")
"""Variables by which somebody else may have said which master to use."""
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS = {
    "spark.driver.host": _LOOPBACK,
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_PARTITIONS_PER_CORE = 4
"""Of a shuffle, with a local master. Spark's 200 are for a cluster, and a stateful stream has them for its life."""
_SOCKETS = "spark.python.unix.domain.socket"
_SOCKET_PATH_MAX = 103
"""The shortest that any system has for the path of a Unix socket; Spark fails where one is longer."""
_SOCKET_NAME = len("/.01234567-89ab-cdef-0123-456789abcdef.sock")
_SECRET = re.compile("(?i)secret|password|token|access[.]?key")
_REDACTED = "spark.redaction.regex"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_PYTHON = "spark.pyspark.python"


class SessionError(HeadraceError):
    """A Spark session cannot be made here, or not as it was asked for."""


def session(
    app_name: str = "headrace",
    *,
    master: str | None = None,
    conf: Mapping[str, str | int | float | bool] | None = None,
) -> SparkSession:
    """Give a Spark session that has the formats `dcp` and `tap`; called on the driver.

    `master` is where Spark runs: `local[*]` without a word here and elsewhere. `conf` has settings of Spark; they win
    over those made here. A session that is running already is given again, with what can still be changed in it; a log
    record tells what can not.

    >>> spark = session("changes", master="local[2]", conf={"spark.driver.memory": "2g"})  # doctest: +SKIP
    """
    asked = {name: _text(value) for name, value in (conf or {}).items()}
    if master is not None:
        asked["spark.master"] = master
    _check(asked)
    from pyspark import SparkContext  # noqa: PLC0415 - only who asks for a session needs pyspark
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - no public name tells it for every thread
        found = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        _change(found, asked)
        return found
    where = asked.setdefault("spark.master", "local[*]") if not _is_said_elsewhere(asked) else ""
    settings = {"spark.app.name": app_name, **_settings(where), **asked}
    _redact(settings)
    _be_quiet(settings)
    if where.startswith("local"):
        _use_sockets(settings)
    with _environment(_variables(where, settings)):
        started = _start(settings)
    if not _finds_formats(started):
        register(started)
    return started


def register(spark: SparkSession) -> None:
    """Tell a session the formats `dcp` and `tap`; called on the driver, where Spark did not find them by itself.

    Spark looks for them when the first Python source is used, in the Python that PYSPARK_PYTHON named when its Java
    process started. It finds none where headrace is on the path as a folder or an archive only.
    """
    from headrace.spark.source import DcpSource  # noqa: PLC0415 - it needs pyspark
    from headrace.spark.tap import TapSource  # noqa: PLC0415

    for source in (DcpSource, TapSource):
        spark.dataSource.register(source)


def _text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(asked: Mapping[str, str]) -> None:
    try:
        from pyspark import __version__  # noqa: PLC0415 - it may be missing
    except ImportError:
        raise SessionError("pyspark is not installed: pip install 'headrace[spark]'") from None
    if tuple(int(part) for part in re.findall(r"\d+", __version__)[:2]) < PYSPARK_MIN:
        least = ".".join(map(str, PYSPARK_MIN))
        raise SessionError(f"headrace needs pyspark {least} or later, not {__version__}: pip install -U pyspark")
    remote = asked.get("spark.remote") or os.environ.get("SPARK_REMOTE")
    if remote or asked.get("spark.master", "").startswith("sc://"):
        raise SessionError(
            "session() starts Spark or joins a cluster; it does not speak Spark Connect: make that session by "
            "SparkSession.builder.remote(…) and give it to headrace.spark.register"
        )


def _is_said_elsewhere(asked: Mapping[str, str]) -> bool:
    return "spark.master" not in asked and any(os.environ.get(name) for name in _ELSEWHERE)


def _settings(master: str) -> dict[str, str]:
    if not master.startswith("local"):
        return dict(_SETTINGS)
    partitions = str(_PARTITIONS_PER_CORE * _cores(master))
    return {**_SETTINGS, **_LOCAL_SETTINGS, "spark.sql.shuffle.partitions": partitions}


def _cores(master: str) -> int:
    """How many tasks a local master runs at once: `local[2]`, `local[*]`, `local-cluster[2,1,1024]`."""
    numbers = [int(part) for part in re.findall(r"\d+", master)]
    if master.startswith("local-cluster") and len(numbers) > 1:
        return numbers[0] * numbers[1]
    if "*" in master:
        return os.cpu_count() or 1
    return numbers[0] if numbers else 1


def _redact(settings: dict[str, str]) -> None:
    """Spark hides what its own default names; a setting that would show passwords is widened, not replaced."""
    given = settings.get(_REDACTED)
    if given is None:
        return
    try:
        hides = re.search(given, "password") is not None
    except re.error:  # Java knows forms that Python does not
        hides = False
    if not hides:
        settings[_REDACTED] = f"(?:{given})|(?i:password)"


def _be_quiet(settings: dict[str, str]) -> None:
    """Have the driver log warnings only, unless somebody has said how it logs."""
    ours = Path(__file__).with_name("log4j2.properties")
    given = settings.get(_JAVA_OPTIONS, "")
    theirs = any(os.environ.get(name) for name in ("SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_GATEWAY_PORT"))
    if "log4j" in given or theirs or not ours.is_file():
        return
    settings[_JAVA_OPTIONS] = f'{given} "-Dlog4j2.configurationFile={ours.as_uri()}"'.strip()


def _use_sockets(settings: dict[str, str]) -> None:
    """Have Java and the workers speak through Unix sockets, where the system's folder for such things allows it.

    Spark does not ask who connects there, so that the folder has to be private. It goes when the interpreter ends, and
    after Spark: what is registered first is run last.
    """
    chosen = f"{_SOCKETS}.enabled" in settings or f"{_SOCKETS}.dir" in settings
    if chosen or len(tempfile.gettempdir()) + len("/headrace-01234567") + _SOCKET_NAME > _SOCKET_PATH_MAX:
        return
    folder = tempfile.mkdtemp(prefix="headrace-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings.update({f"{_SOCKETS}.enabled": "true", f"{_SOCKETS}.dir": folder})


def _variables(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """What the environment has to say while Spark starts."""
    found: dict[str, str] = {}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started Java already
        found["JAVA_HOME"] = str(find_java().home)
    if _PYTHON in settings:
        found["PYSPARK_PYTHON"] = settings[_PYTHON]
    elif "PYSPARK_PYTHON" not in os.environ and master.startswith(("local", "spark:")):
        # On YARN and Kubernetes the executors' Python is in an archive or an image, where nobody knows this path.
        found["PYSPARK_PYTHON"] = sys.executable
    if master.startswith("local") and "SPARK_LOCAL_IP" not in os.environ:
        found["SPARK_LOCAL_IP"] = _LOOPBACK  # where the UI listens
    return found


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _start(settings: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - see session
    from pyspark.sql import SparkSession  # noqa: PLC0415

    try:
        return SparkSession.builder.config(map=dict(settings)).getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        told = f"Spark's Java process ended while it started, in {os.environ.get('JAVA_HOME', 'an unknown place')}"
        raise SessionError(f"{told}: what it printed says why (too little memory, a setting that it refuses)") from None


def _finds_formats(spark: SparkSession) -> bool:
    """Whether Spark's own search comes upon the formats: it lists the path of the Python that its Java process knows.

    spark-submit tells `spark.pyspark.python` to this process, and not to that one.
    """
    java = spark.sparkContext._jvm  # noqa: SLF001 - nothing else shows the environment of the other process
    assert java is not None, "a session that runs"
    variable = java.java.lang.System.getenv
    searched = variable("PYSPARK_DRIVER_PYTHON") or variable("PYSPARK_PYTHON") or "python3"
    return _is_this(searched) and any(found.name == "pyspark_headrace" for found in pkgutil.iter_modules())


def _is_this(python: str) -> bool:
    return os.path.abspath(shutil.which(python) or python) == os.path.abspath(sys.executable)  # noqa: PTH100 - `a/../b`


def _change(spark: SparkSession, asked: Mapping[str, str]) -> None:
    """Bring a running session near to what was asked for, and tell what stays."""
    for name, wanted in {"spark.sql.python.filterPushdown.enabled": "true", **asked}.items():
        has = spark.conf.get(name, None)
        if has == wanted:
            continue
        if spark.conf.isModifiable(name):
            spark.conf.set(name, wanted)
            continue
        shown = "" if _SECRET.search(name) else f" is {'not set' if has is None else has} and"
        log.warning("setting %s%s stays in the Spark session that is running: call spark.stop() first", name, shown)
    context = spark.sparkContext
    if str(context.master).startswith("local") and not _is_this(context.pythonExec):
        runs = shutil.which(context.pythonExec) or context.pythonExec
        log.warning("the workers of the running Spark session would run %s: they run %s now", runs, sys.executable)
        context.pythonExec = sys.executable
    if not _finds_formats(spark):
        register(spark)


__all__ = ["PYSPARK_MIN", "SessionError", "register", "session"]
