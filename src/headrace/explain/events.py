"""What an input is made of, whatever its format: pieces of conversations, in the order they were seen.

A reader (hex, JSON lines, pcap, binary) yields these values; `messages` cuts the pieces into messages. A
conversation is one connection: both directions of it speak one dialect.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.errors import HeadraceError

Direction: TypeAlias = Literal["c2s", "s2c"] | None


class InputError(HeadraceError):
    """The input cannot be read at all, or goes past a limit. The text says what, where, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some bytes of one direction of a conversation.

    `whole`: somebody cut these bytes by hand or by message, so that their ends mean something; otherwise they
    are a stretch of a stream. `missing`: that many bytes were sent after `data` and are not in the input.
    `offset`: where `data` begins in the origin, for an origin whose bytes people count from its front. `joined`:
    where in `data` other origins begin, if it was put together from several.
    """

    conversation: str
    direction: Direction
    data: bytes
    origin: str
    whole: bool = False
    missing: int = 0
    offset: int | None = None
    joined: tuple[tuple[int, str], ...] = ()

    def place(self, at: int) -> str:
        """Name the place in the input of one of the bytes."""
        if self.offset is not None:
            return f"byte {self.offset + at} of {self.origin}"
        later = bisect_right(self.joined, at, key=lambda each: each[0])
        start, name = self.joined[later - 1] if later else (0, self.origin)
        return f"byte {at - start} of {name}" if self.whole and at > start else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A conversation is over: nothing will follow in it."""

    conversation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """Words that the input itself carries, to be shown where they stand."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something the user should know about how the input was read; nothing is wrong."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A part of the input is damaged; what comes before it, and perhaps after it, was read."""

    origin: str
    text: str


Event: TypeAlias = Piece | Ended | Comment | Note | Fault
Events: TypeAlias = Iterator[Event]


def counted(count: int, noun: str) -> str:
    """Write a number of things: 1 byte, 2 bytes."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """Escape what a terminal might obey or hide."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
