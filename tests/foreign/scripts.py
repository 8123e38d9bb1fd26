"""What two foreign clients are told to do, and a record of what came of it, one line an operation.

A record holds nothing that two correct servers may differ in: a CAS is written `<cas>`, the server's address `SERVER`,
and of an error that the server put into words only its number. Counters are read without spaces at their end:
memcached leaves those when a number loses a digit (its protocol.txt says so), Couchbase does not. All else is written
as the client gave it.
"""

from __future__ import annotations

import random
import time
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

U64_MAX = (1 << 64) - 1
LONG_BYTES = 60
SHORT_LIFE_S = 2
PAST_IT_S = 3.2  # a server may count whole seconds of a clock of its own
PAST = 30 * 24 * 3600 + 1  # the least time that counts from 1970
FUTURE = 4_000_000_000
COUNTER = "counter"
POLL_TIMEOUT_MS = 30_000
LARGE = random.Random(1).randbytes(1_000_000)  # memcached takes at most 1 MiB with key and header
TEXT = "naïve — 水 — \x00\r\nEND\r\n"
LONGEST_KEY = "k" * 250


class Version(int):
    """A CAS: a number to the client, no number in the record."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<cas>"


def shown(value: object) -> str:
    """A value as the record holds it."""
    match value:
        case dict():
            return "{" + ", ".join(f"{shown(key)}: {shown(value[key])}" for key in sorted(value, key=str)) + "}"
        case list() | tuple():
            return "(" + ", ".join(map(shown, value)) + ")"
        case bytes() | str() if len(value) > LONG_BYTES:
            octets = value.encode() if isinstance(value, str) else value
            return f"{type(value).__name__} of {len(value)}, crc32 {zlib.crc32(octets):08x}"
        case _:
            return repr(value)


class Recorder:
    """Calls a client by the names of its methods and writes down what they give or raise."""

    def __init__(self, client: Any, address: str) -> None:
        self.lines: list[str] = []
        self._client = client
        self._address = address

    def do(self, name: str, *args: Any, **options: Any) -> Any:
        """Call one method; a CAS that comes with a value is made a `Version`."""
        given = [shown(arg) for arg in args] + [f"{key}={shown(value)}" for key, value in options.items()]
        line = f"{name}({', '.join(given)})"
        try:
            result = getattr(self._client, name)(*args, **options)
        except Exception as error:  # noqa: BLE001  whatever the client raises is what is compared
            code = getattr(error, "code", None)
            words = str(error).replace(self._address, "SERVER") if code is None else f"status {code}"
            self.lines.append(f"{line} !! {type(error).__name__}: {words}")
            return None
        if name == "gets" or options.get("get_cas"):
            result = tuple(Version(part) if place == 1 and part else part for place, part in enumerate(result))
        if args == (COUNTER,) and isinstance(result, str):
            result = result.rstrip(" ")
        self.lines.append(f"{line} -> {shown(result)}")
        return result

    def cas_of(self, key: str) -> Version:
        """The CAS that an item has now; of one that is missing, a number that is no CAS."""
        result = self.do("gets", key)
        return Version((result and result[1]) or 1)


def store_and_read(do: Callable[..., Any]) -> None:
    """What both clients can say in the same words: values of all kinds, and the four ways to store."""
    for key, value in {
        "text": TEXT,
        "empty text": "",
        "bytes": bytes(range(256)),
        "empty bytes": b"",
        "number": 42,
        "negative": -1,
        "true": True,
        "none": None,
        "pickled": {"a": [1, 2.5, None], "b": ("x", frozenset({1}))},
        LONGEST_KEY: "with a long key",
        "large": LARGE,
        "compressible": "yes " * 100_000,
    }.items():
        key_ = key.replace(" ", "_")
        do("get", key_)
        do("set", key_, value)
        do("get", key_)
    do("set", "text", "other")
    do("get", "text")
    do("add", "text", "not this")
    do("get", "text")
    do("add", "added", "this")
    do("get", "added")
    do("replace", "added", "that")
    do("get", "added")
    do("replace", "missing", "no")
    do("get", "missing")
    do("delete", "added")
    do("get", "added")
    do("delete", "added")
    do("replace", "added", "no")
    do("add", "added", "again")
    do("get", "added")


def many(do: Callable[..., Any]) -> None:
    """Several keys in one call, some of them missing."""
    do("set_multi", {f"many{number}": f"value {number}" for number in range(300)})
    do("get_multi", [f"many{number}" for number in range(0, 300, 7)])
    do("get_multi", ["many1", "absent", "many2", "absent too"])
    do("get_multi", ["many1", "absent"])
    do("get_multi", ["absent"])
    do("delete_multi", ["many1", "many2"])
    do("delete_multi", ["many1", "many3"])
    do("get_multi", ["many1", "many2", "many3", "many4"])


def compare_and_set(recorder: Recorder) -> None:
    """A CAS that is right, one that has become stale, and one for an item that is gone."""
    do = recorder.do
    do("gets", "versioned")
    do("set", "versioned", "1")
    first = recorder.cas_of("versioned")
    do("cas", "versioned", "2", first)
    do("get", "versioned")
    do("cas", "versioned", "3", first)
    do("get", "versioned")
    second = recorder.cas_of("versioned")
    do("set", "versioned", "4")
    do("cas", "versioned", "5", second)
    third = recorder.cas_of("versioned")
    do("delete", "versioned")
    do("cas", "versioned", "6", third)
    do("get", "versioned")
    do("add", "versioned", "7")
    do("cas", "versioned", "8", third)
    do("get", "versioned")


def counters(do: Callable[..., Any]) -> None:
    """Counters that exist: the floor, the wrap at 64 bits, and odd ways to write a number."""
    do("set", COUNTER, "10")
    for name, delta in (("incr", 1), ("incr", 0), ("decr", 2), ("decr", 9), ("decr", 1), ("decr", 5), ("incr", 7)):
        do(name, COUNTER, delta)
        do("get", COUNTER)
    for start in (U64_MAX, U64_MAX - 1, U64_MAX - 2, 0, 1, 99, "007"):
        do("set", COUNTER, str(start))
        do("incr", COUNTER, 2)
        do("get", COUNTER)
        do("decr", COUNTER, 3)
        do("get", COUNTER)


def no_numbers(do: Callable[..., Any]) -> None:
    """Values that cannot be counted with stay what they are."""
    for start in ("", "x", "1x", "x1", "-1", "1.5", str(U64_MAX + 1), "9" * 20, "9" * 40):
        do("set", COUNTER, start)
        do("incr", COUNTER, 1)
        do("decr", COUNTER, 3)
        do("get", COUNTER)


def short_lives(do: Callable[..., Any], name: str = "time") -> None:
    """Expiry: soon, in the past, in the far future, and replaced by a later write."""
    do("set", "lives", "long", **{name: 1000})
    do("set", "lives_to_2096", "long", **{name: FUTURE})
    do("set", "past", "gone at once", **{name: PAST})
    do("get", "past")
    do("add", "past", "the way is free")
    do("get", "past")
    do("set", "short", "gone soon", **{name: SHORT_LIFE_S})
    do("add", "short_added", "gone soon", **{name: SHORT_LIFE_S})
    do("set", "short_replaced", "gone soon")
    do("replace", "short_replaced", "gone soon", **{name: SHORT_LIFE_S})
    do("set_multi", {"short_a": "1", "short_b": "2"}, **{name: SHORT_LIFE_S})
    do("set", "saved", "no longer short", **{name: SHORT_LIFE_S})
    do("set", "saved", "stays")
    keys = ["short", "short_added", "short_replaced", "short_a", "short_b", "saved", "lives", "lives_to_2096"]
    do("get_multi", keys)
    time.sleep(PAST_IT_S)
    for key in keys:
        do("get", key)
    do("replace", "short", "no")
    do("delete", "short_added")
    do("add", "short", "the way is free")
    do("get", "short")


def of_binary_memcached(client: Any, address: str) -> list[str]:
    """Everything that python-binary-memcached can do."""
    recorder = Recorder(client, address)
    do = recorder.do
    do("flush_all")
    store_and_read(do)
    do("set", "stored_as_is", LARGE[:100_000].hex(), compress_level=0)
    do("get", "stored_as_is")
    do("get", "absent", "a default")
    many(do)
    do("set_multi", {("many5", 0): "add, which exists", ("added_as_well", 0): "add, which does not"})
    do("get_multi", ["many5", "added_as_well"])
    compare_and_set(recorder)
    do("set", "versioned", "v", get_cas=True)
    stale = recorder.cas_of("versioned")
    do("replace", "versioned", "w", get_cas=True)
    do("delete", "versioned", cas=stale)
    do("delete", "versioned", cas=recorder.cas_of("versioned"))
    do("get", "versioned")
    do("cas", "versioned", "by None, an add", None)
    do("cas", "versioned", "by None, refused", None)
    do("get", "versioned")
    counters(do)
    no_numbers(do)
    for name in ("incr", "decr"):
        do(name, f"{name}_new", 5)
        do(name, f"{name}_new_100", 5, default=100)
        do(name, f"{name}_new_100", 5, default=100)
        do(name, f"{name}_short", 1, default=7, time=SHORT_LIFE_S)
        do(name, f"{name}_new_max", 1, default=U64_MAX)
        do(name, f"{name}_new_max", 1, default=U64_MAX)
        do(name, "text", 1)
        do(name, "negative", 1)
    short_lives(do)
    do("incr", "incr_short", 1, default=70)
    do("get", "decr_short")
    do("flush_all")
    do("get_multi", ["text", "lives", "large", COUNTER])
    do("set", "after_flush", "stays")
    do("get", "after_flush")
    return recorder.lines


def of_pylibmc(client: Any, address: str) -> list[str]:
    """Everything that pylibmc with libmemcached can do in the binary protocol."""
    recorder = Recorder(client, address)
    do = recorder.do
    do("flush_all")
    store_and_read(do)
    do("set", "compressed", "yes " * 10_000, min_compress_len=100)
    do("get", "compressed")
    do("get", "absent", "a default")
    many(do)
    do("get_multi", ["any1", "any4", "none"], key_prefix="m")
    do("add_multi", {"many4": "exists", "many_new": "does not"})
    do("get_multi", ["many4", "many_new"])
    compare_and_set(recorder)
    counters(do)
    do("incr", "never_made", 1)
    do("decr", "never_made", 1)
    do("set", COUNTER, "5")
    do("incr_multi", [COUNTER], delta=3)
    do("get", COUNTER)
    do("incr_multi", [COUNTER, "never_made"])
    do("get", COUNTER)
    do("set", "words", "middle")
    do("append", "words", " end")
    do("prepend", "words", "begin ")
    do("append", "words", "")
    do("get", "words")
    do("append", "missing", "x")
    do("prepend", "missing", "x")
    do("get", "missing")
    stale = recorder.cas_of("words")
    do("append", "words", "!")
    do("cas", "words", "no", stale)
    do("get", "words")
    # After memcached's answer to a touch libmemcached waits for more, until this time is up, and then is content.
    client.behaviors["_poll_timeout"] = 1000
    do("set", "touched_for_long", "later", time=SHORT_LIFE_S)
    do("touch", "touched_for_long", 1000)
    do("set", "touched_away", "soon")
    do("touch", "touched_away", SHORT_LIFE_S + 1)
    client.behaviors["_poll_timeout"] = POLL_TIMEOUT_MS
    do("touch", "missing", 1000)
    do("append", "touched_away", ", though longer")
    short_lives(do)
    do("get", "touched_away")
    do("get", "touched_for_long")
    do("touch", "touched_away", 1000)
    do("flush_all")
    do("get_multi", ["text", "lives", "large", COUNTER])
    do("set", "after_flush", "stays")
    do("get", "after_flush")
    do(
        "incr", "after_flush", 1
    )  # the last: libmemcached does not know this status, and leaves the server alone for 2 s
    do("get", "after_flush")
    return recorder.lines
