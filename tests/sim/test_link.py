"""Two ends joined in memory."""

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from headrace.ids import Opaque
from headrace.testing.link import Link, Pace
from headrace.testing.sim.loop import SimLoop
from headrace.wire import Message, encode
from headrace.wire.catalogue import DcpNoop


class End:
    """An end that sends numbered noops and keeps what it receives."""

    name = "end"
    is_producer = False
    deadline: float | None = None

    def __init__(self, link: Link, *, sends: int = 0) -> None:
        self.line = link.a if link.a.end is None and sends else link.b
        self.left = sends
        self.received: list[int] = []
        self.pumped_at: list[float] = []
        self.closed = 0

    def receive(self, message: Message, now: float) -> None:
        """Keep it."""
        del now
        assert isinstance(message, DcpNoop)
        self.received.append(message.opaque)

    def pump(self, now: float) -> bool:
        """Send while there is room."""
        self.pumped_at.append(now)
        while self.left and self.line.room_bytes() > 0:
            self.line.send(encode(DcpNoop(opaque=Opaque(self.left))))
            self.left -= 1
        return False

    def stats(self) -> Iterator[tuple[str, object]]:
        """Nothing."""
        return iter(())

    def close(self) -> None:
        """Count it."""
        self.closed += 1


def joined(loop: SimLoop, *, sends: int, **pace: float) -> tuple[Link, End, End]:
    """A link whose first end sends, and its ends."""
    link = Link(loop, Random(1), pace=Pace(**pace))  # type: ignore[arg-type]
    first, second = End(link, sends=sends), End(link)
    link.join(first, second)
    return link, first, second


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    """A loop of virtual time."""
    loop = SimLoop()
    yield loop
    loop.close()


@pytest.mark.parametrize("piece_bytes_max", [1, 7, 24, 1000])
def test_pieces_make_the_same_messages(loop: SimLoop, piece_bytes_max: int):
    """However bytes are cut, every message arrives once and in order, also where there is little room."""
    _, _, second = joined(loop, sends=20, piece_bytes_max=piece_bytes_max, room_bytes=50)
    loop.run_until_complete(asyncio.sleep(10))
    assert second.received == list(range(20, 0, -1))


def test_after_a_cut_nothing_arrives(loop: SimLoop):
    """What was on its way is lost; each end hears of the cut when it is told so, and one may never be."""
    link, first, second = joined(loop, sends=20, piece_bytes_max=10)
    loop.run_until_complete(asyncio.sleep(0.02))
    link.cut(a_hears_s=1.0, b_hears_s=None)
    arrived = list(second.received)
    assert 0 < len(arrived) < 20
    loop.run_until_complete(asyncio.sleep(0.5))
    assert first.closed == 0
    loop.run_until_complete(asyncio.sleep(10))
    assert second.received == arrived
    assert (first.closed, second.closed) == (1, 0)


def test_who_leaves_is_heard_to_the_end(loop: SimLoop):
    """An end that closes the connection sends nothing more; what it sent before arrives first."""
    link, first, second = joined(loop, sends=20, piece_bytes_max=10)
    loop.call_later(0.01, link.a.leave, "it is done")
    loop.run_until_complete(asyncio.sleep(10))
    assert second.received == list(range(20, 0, -1))
    assert (first.closed, second.closed) == (1, 1)
    assert link.why == "it is done"


def test_a_deadline_is_kept(loop: SimLoop):
    """An end that wants to be asked at a time is asked then."""
    _, _, second = joined(loop, sends=1)
    second.deadline = 3.0
    loop.run_until_complete(asyncio.sleep(3.1))
    assert any(at == pytest.approx(3.0) for at in second.pumped_at)
