"""Where commands put what they found: data on standard output, words on standard error.

A command speaks to one `Output` and does not know whether a person or a program reads. Text is for people
and may change; JSON is one object per line, ASCII only, and keeps its names.
"""

import io
import sys
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TextIO

from headrace.explain import Comment, Explained, TextStyle, comment_line, render_json, render_text


class OutputFormat(StrEnum):
    """What `--output` may be."""

    TEXT = "text"
    JSON = "json"


class Output(ABC):
    """One way of showing what a command found."""

    def __init__(self, data: TextIO | None = None, words: TextIO | None = None) -> None:
        self._data = data if data is not None else sys.stdout
        self._words = words if words is not None else sys.stderr
        for stream in (self._data, self._words):
            # A terminal of an old encoding must not end the program over a character in a key.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

    @abstractmethod
    def message(self, explained: Explained) -> None:
        """Show one explained message."""

    @abstractmethod
    def comment(self, comment: Comment) -> None:
        """Show words that the input carries, where there is a place for them."""

    def say(self, text: str) -> None:
        """Tell the user something that is no data."""
        self._data.flush()  # so that words stand after the data they speak of
        self._words.write(text + "\n")
        self._words.flush()

    def close(self) -> None:
        """Write out what is buffered."""
        self._data.flush()


class TextOutput(Output):
    """For people: the table of the documents, messages parted by a blank line."""

    def __init__(self, style: TextStyle, data: TextIO | None = None, words: TextIO | None = None) -> None:
        super().__init__(data, words)
        self._style = style
        self._between = ""

    def message(self, explained: Explained) -> None:
        """Print heading, picture, table and problems."""
        self._write(render_text(explained, self._style))

    def comment(self, comment: Comment) -> None:
        """Print the words of the input behind a `#`."""
        self._write(comment_line(comment.text))

    def _write(self, text: str) -> None:
        self._data.write(f"{self._between}{text}\n")
        self._between = "\n"


class JsonOutput(Output):
    """For programs: one object per message and line."""

    def message(self, explained: Explained) -> None:
        """Print one line."""
        self._data.write(render_json(explained) + "\n")

    def comment(self, comment: Comment) -> None:
        """Leave it out: a program asked for messages."""
