import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from headrace.client import AuthFailedError, ConnectionLostError, NotFoundError, OptionError
from headrace.errors import HeadraceError
from headrace.pipelines.unwrapping import SparkFailedError, is_of_spark, unwrapped


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (
            "[STREAM_FAILED] headrace.client.errors.ConnectionLostError: 127.0.0.1:1: refused\n SQLSTATE: 38000",
            ConnectionLostError,
            "127.0.0.1:1: refused",
        ),
        (
            "PythonException: Trace\n  File …\nheadrace.client.errors.AuthFailedError: ann: not authenticated\nmore",
            AuthFailedError,
            "ann: not authenticated",
        ),
        ("headrace.client.options.OptionError: there is no option x", OptionError, "there is no option x"),
        ("headrace.no.such.ModuleError: x\nheadrace.client.errors.NotFoundError: y", NotFoundError, "y"),
        (
            "headrace.client.reader.BatchReader: x",
            SparkFailedError,
            "Spark failed: headrace.client.reader.BatchReader: x",
        ),
        ("\n[WRONG] something of Spark\n\tat java", SparkFailedError, "Spark failed: [WRONG] something of Spark"),
        ("", SparkFailedError, "Spark failed: PySparkException"),
    ],
)
def test_an_error_of_ours_is_found(text: str, kind: type[HeadraceError], sentence: str):
    """Class and sentence are those of the error that was raised; what is none of ours is told in one line."""
    found = unwrapped(PySparkException(text))
    assert (type(found), str(found)) == (kind, sentence)


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), Py4JNetworkError("no answer")])
def test_java_that_is_gone_is_told(error: Exception):
    """A socket where nobody answers is no sentence for a user."""
    assert is_of_spark(error)
    assert "Java process is gone" in str(unwrapped(error))


def test_an_error_of_a_program_is_none_of_spark():
    """It is raised as it is, with its stack trace."""
    assert not is_of_spark(KeyError("x"))
