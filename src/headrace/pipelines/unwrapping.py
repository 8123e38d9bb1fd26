"""Errors of ours that come out of Spark: the sentence in the middle of what Spark makes of it.

An error that a source raises in one of Spark's Python processes arrives as text, inside an exception of the JVM inside
one of pyspark. The text has the name of the class and the sentence (`headrace.spark.told` keeps the stack trace away).
"""

from __future__ import annotations

import re
from importlib import import_module

from headrace.errors import HeadraceError

_OURS = re.compile(r"\b(headrace(?:\.\w+)+)\.(\w+): ([^\n]+)")
_LINE_CHARACTERS_MAX = 500


class SparkFailedError(HeadraceError):
    """Spark failed for a reason of its own."""


def is_of_spark(error: BaseException) -> bool:
    """Tell whether an error came out of Spark; when nobody answers where Java was, it is one of the system."""
    return isinstance(error, OSError) or type(error).__module__.startswith(("pyspark.", "py4j."))


def unwrapped(error: BaseException) -> HeadraceError:
    """Give the error of ours that is in an error of Spark, of the same class; or one that tells Spark's own reason."""
    for module, name, sentence in _OURS.findall(str(error)):
        made = _made(module, name, sentence.strip())
        if made is not None:
            return made
    if isinstance(error, OSError) or type(error).__module__.startswith("py4j."):
        return SparkFailedError(
            "Spark's Java process is gone: where it ran out of memory, give it more (spark.driver.memory=4g) or let a "
            "micro-batch take less"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = lines[0] if lines else type(error).__name__
    return SparkFailedError(f"Spark failed: {told[:_LINE_CHARACTERS_MAX]}")


def _made(module: str, name: str, sentence: str) -> HeadraceError | None:
    try:
        kind = getattr(import_module(module), name, None)
    except ImportError:
        return None
    if not isinstance(kind, type) or not issubclass(kind, HeadraceError):
        return None
    found: HeadraceError = kind.__new__(kind)
    # Some are made of parts, of which the sentence is all that is left.
    Exception.__init__(found, sentence)
    return found


__all__ = ["SparkFailedError", "is_of_spark", "unwrapped"]
