"""A front end with a memcached before a node, as examples/invalidate_cache.py says that it should be."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from headrace.client import (
    KeyExistsError,
    KvConnection,
    NotFoundError,
    NotStoredError,
)
from headrace.wire.catalogue import Add, Flush, StopPersistence
from tests.examples.programs import Program, run_to_end, source_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Server

KEYS = [b"item-%d" % number for number in range(8)]
RESERVED_S = 5
HELD_UP_S = 0.002


class FrontEnd:
    """Reads through the cache. What is being read is reserved, so that an invalidation meanwhile is noticed."""

    def __init__(self, bucket: Server, cache: Server) -> None:
        self.bucket = KvConnection(bucket.host, bucket.port)
        self.cache = KvConnection(cache.host, cache.port)

    def close(self) -> None:
        self.bucket.close()
        self.cache.close()

    def get(self, key: bytes, held_up_s: float = 0.0) -> bytes | None:
        """Give the value of a key, from the cache if it is there; None where there is none."""
        with suppress(NotFoundError):
            cached = self.cache.get(key).value
            if cached:
                return cached
        ticket = self._reserve(key)
        try:
            value = self.bucket.get(key).value
        except NotFoundError:
            return None
        time.sleep(held_up_s)
        if ticket:
            with suppress(KeyExistsError, NotFoundError):
                self.cache.set(key, value, cas=ticket)
        return value

    def _reserve(self, key: bytes) -> int:
        try:
            return int(self.cache.request(Add(key=key, value=b"", flags=0, expiry=RESERVED_S)).cas)
        except (KeyExistsError, NotStoredError):
            return 0

    def cached(self, key: bytes) -> bytes | None:
        """What the cache alone has."""
        with suppress(NotFoundError):
            return self.cache.get(key).value or None
        return None

    def stored(self, key: bytes) -> bytes | None:
        """What the bucket alone has."""
        with suppress(NotFoundError):
            return self.bucket.get(key).value
        return None


class Reader(threading.Thread):
    """A front end with users."""

    def __init__(self, front_end: FrontEnd, seed: int) -> None:
        super().__init__(daemon=True)
        self.front_end = front_end
        self._random = Random(seed)
        self.ended = threading.Event()
        self.reads = 0

    def run(self) -> None:
        while not self.ended.is_set():
            self.front_end.get(self._random.choice(KEYS), self._random.choice([0.0, HELD_UP_S]))
            self.reads += 1


@pytest.fixture
def front_end(node: Server, memcached: Server):
    """A front end, closed at the end."""
    made = FrontEnd(node, memcached)
    yield made
    made.close()


def told_more(program: Program, than: int) -> bool:
    """Whether the program told of the item once more."""
    return program.said.count("item-5") > than


def cache_of(memcached: Server) -> tuple[str, str]:
    """Tell the program which cache."""
    return "--cache", f"{memcached.host}:{memcached.port}"


@pytest.mark.parametrize("scheme", ["couchbase", "tap"])
def test_what_changes_leaves_the_cache(
    scheme: str, node: Server, memcached: Server, front_end: FrontEnd, tmp_path: Path
):
    """An item that is changed, deleted, expired or flushed is no longer cached; others are left alone."""
    items = front_end.bucket
    for key in KEYS:
        items.set(key, b"old")
    front_end.cache.set(b"item-0", b"older than the bucket's")
    with Program(tmp_path, "invalidate_cache", source_of(node, scheme), *cache_of(memcached)) as program:
        program.wait_for("following ")
        # Streams that begin one after the other empty it more than once; the last time is after all of them run.
        program.wait_until(lambda: "emptied" in program.said.partition("following ")[2], "the cache was not emptied")
        assert front_end.cached(b"item-0") is None
        for key in KEYS:
            assert front_end.get(key) == b"old"
            assert front_end.cached(key) == b"old"
        while front_end.cached(b"item-5") != b"soon gone":  # where the machine is busy, it may be gone before that
            told = program.said.count("item-5")
            items.set(b"item-5", b"soon gone", expiry=2)
            program.wait_until(partial(told_more, program, told), "a change was not told")
            front_end.get(b"item-5")
        items.set(b"item-1", b"new")
        items.delete(b"item-2")
        program.wait_until(lambda: front_end.cached(b"item-1") is None, "a change left the cache as it was")
        program.wait_until(lambda: front_end.cached(b"item-2") is None, "a deletion left the cache as it was")
        program.wait_until(lambda: front_end.cached(b"item-5") is None, "an expiration left the cache as it was")
        assert front_end.cached(b"item-3") == b"old"
        assert front_end.get(b"item-1") == b"new"
        assert front_end.cached(b"item-1") == b"new"
        items.request(Flush())
        program.wait_until(lambda: all(front_end.cached(key) is None for key in KEYS), "a flush left items cached")


def test_nothing_stale_stays_while_all_read_and_write(
    node: Server, memcached: Server, front_end: FrontEnd, tmp_path: Path
):
    """Front ends that fill the cache while items change leave in it, in the end, only what the bucket has."""
    random = Random(6)
    readers = [Reader(FrontEnd(node, memcached), seed) for seed in range(3)]
    with Program(tmp_path, "invalidate_cache", source_of(node, "couchbase"), *cache_of(memcached)) as program:
        program.wait_for("following ")
        for reader in readers:
            reader.start()
        for number in range(1500):
            key = random.choice(KEYS)
            if random.random() < 0.2:
                with suppress(NotFoundError):
                    front_end.bucket.delete(key)
            else:
                front_end.bucket.set(key, b"%d" % number)
        front_end.bucket.set(b"the last", b"1")
        for reader in readers:
            reader.ended.set()
            reader.join()
            reader.front_end.close()
        program.wait_for("the last")  # keys of other vbuckets may still be on their way
        program.wait_until(
            lambda: all(front_end.cached(key) in (None, front_end.stored(key)) for key in KEYS), "a stale item stayed"
        )
    assert all(reader.reads > 100 for reader in readers)


def test_a_rollback_empties_the_cache(node: Server, memcached: Server, front_end: FrontEnd, tmp_path: Path):
    """A value that the server lost in a crash is not found in the cache afterwards."""
    front_end.bucket.set(b"item-1", b"on disk")
    node.restart()
    items = KvConnection(node.host, node.port)
    with Program(tmp_path, "invalidate_cache", source_of(node, "couchbase"), *cache_of(memcached)) as program:
        program.wait_for("following ")
        program.wait_for("emptied the cache")
        items.request(StopPersistence())
        items.set(b"item-1", b"to be lost")
        program.wait_for("mutation   item-1")
        front_end.cache.set(b"item-1", b"to be lost")  # as a front end does that read it in this moment
        items.close()
        node.kill()
        node.start()
        program.wait_until(lambda: front_end.cached(b"item-1") is None, "what was lost is cached")
    with KvConnection(node.host, node.port) as again:
        assert again.get(b"item-1").value == b"on disk"


def test_by_tap_a_broken_connection_ends_it(node: Server, memcached: Server, tmp_path: Path):
    """TAP tells nobody what was missed: the program ends with a sentence, and another start empties the cache."""
    with Program(tmp_path, "invalidate_cache", source_of(node, "tap"), *cache_of(memcached)) as program:
        program.wait_for("emptied the cache")
        node.kill()
        assert program.wait() == 1
        assert program.lines[-1].endswith("the connection broke, and changes may be missed: start it again")
    node.start()
    with KvConnection(memcached.host, memcached.port) as cache:
        cache.set(b"item-1", b"from before")
        with Program(tmp_path, "invalidate_cache", source_of(node, "tap"), *cache_of(memcached)) as program:
            program.wait_for("emptied the cache")
        with pytest.raises(NotFoundError):
            cache.get(b"item-1")


def test_without_a_cache_there_is_one_sentence(node: Server, tmp_path: Path):
    """Where no memcached listens, the program ends at once and says so."""
    address = f"couchbase://{node.host}:{node.port}"
    code, lines = run_to_end(tmp_path, "invalidate_cache", address, "--cache", "127.0.0.1:9")
    assert code == 1
    assert lines == ["invalidate_cache.py: 127.0.0.1:9: cannot connect: Connection refused"]
