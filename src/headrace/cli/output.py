"""Where commands put what they found: data on standard output, words on standard error.

A command speaks to one `Output` and does not know whether a person or a program reads. Text is for people
and may change; JSON is one object per line, ASCII only, and keeps its names.

Either stream may be full, or closed by the shell: then Python has no `sys.stdout`, and `main` makes a
`sys.stderr`. Data that cannot be written raise OutputError, or BrokenPipeError where the reader left; words
that cannot be written are lost.
"""

import io
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import TextIO

from headrace.errors import HeadraceError
from headrace.explain import Comment, Explained, TextStyle, comment_line, render_json, render_text

EXIT_OUTPUT = 74
"""The exit code for data that cannot be written: EX_IOERR of sysexits.h."""


class OutputError(HeadraceError):
    """Standard output does not take what a command found."""


def say(text: str, words: TextIO | None = None) -> None:
    """Tell the user something that is no data, if standard error takes it."""
    stream = words if words is not None else sys.stderr
    try:
        stream.write(text + "\n")
        stream.flush()
    except OSError:
        silence(stream)


def silence(stream: TextIO | None) -> None:
    """Let the interpreter's last flush of a stream go nowhere: whoever read it has left, or it is full."""
    try:
        number = stream.fileno() if stream is not None else None
    except (OSError, ValueError):  # not a real file, as in a test
        return
    if number is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


class OutputFormat(StrEnum):
    """What `--output` may be."""

    TEXT = "text"
    JSON = "json"


class Output(ABC):
    """One way of showing what a command found."""

    def __init__(self, data: TextIO | None = None, words: TextIO | None = None) -> None:
        self._data = data if data is not None else sys.stdout
        self._words = words
        if self._data is None:
            raise OutputError("standard output is closed")
        for stream in (self._data, words if words is not None else sys.stderr):
            # A terminal of an old encoding must not end the program over a character in a key.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

    @abstractmethod
    def message(self, explained: Explained) -> None:
        """Show one explained message."""

    @abstractmethod
    def comment(self, comment: Comment) -> None:
        """Show words that the input carries, where there is a place for them."""

    @abstractmethod
    def omit_places(self) -> None:
        """Leave out for people where a message stands: the input is that message."""

    def say(self, text: str) -> None:
        """Tell the user something that is no data."""
        self.close()  # so that words stand after the data they speak of
        say(text, self._words)

    def close(self) -> None:
        """Write out what is buffered."""
        with _translated():
            self._data.flush()

    def _write(self, text: str) -> None:
        with _translated():
            self._data.write(text)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {os.strerror(error.errno or 0)}") from None


class TextOutput(Output):
    """For people: the table of the documents, messages parted by a blank line."""

    def __init__(self, style: TextStyle, data: TextIO | None = None, words: TextIO | None = None) -> None:
        super().__init__(data, words)
        self._style = style
        self._between = ""

    def message(self, explained: Explained) -> None:
        """Print heading, picture, table and problems."""
        self._print(render_text(explained, self._style))

    def comment(self, comment: Comment) -> None:
        """Print the words of the input behind a `#`."""
        self._print(comment_line(comment.text))

    def omit_places(self) -> None:
        """Print no line with origin, connection and length above a message."""
        self._style = replace(self._style, located=False)

    def _print(self, text: str) -> None:
        self._write(f"{self._between}{text}\n")
        self._between = "\n"


class JsonOutput(Output):
    """For programs: one object per message and line."""

    def message(self, explained: Explained) -> None:
        """Print one line."""
        self._write(render_json(explained) + "\n")

    def comment(self, comment: Comment) -> None:
        """Leave it out: a program asked for messages."""

    def omit_places(self) -> None:
        """Write them all the same: an object has all its keys."""
