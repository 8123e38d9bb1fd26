"""How an error of ours reaches a Spark user: as one sentence, not as a stack trace with the sentence at its end.

Spark's Python workers send what `traceback` makes of an exception to the JVM, unless SPARK_HIDE_TRACEBACK is set when
they do. Errors of headrace say what was wrong, where, and what to do; a trace of its files adds nothing for who reads
it. The worker ends after an exception, so that the variable hides nobody else's.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def told() -> Iterator[None]:
    """Let an error of ours be told without its stack trace; others keep theirs."""
    try:
        yield
    except HeadraceError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        error.__cause__ = None
        error.__suppress_context__ = True
        raise


__all__ = ["told"]
