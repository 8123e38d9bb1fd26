"""An event loop whose time is only counted: nothing waits, and the same calls give the same order for ever.

The node's own coroutines (flusher, pager, commands) run on it unchanged. When nothing is ready, time jumps to the next
timer. Only what asks for a socket, a thread or a signal is refused.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import TypeVar

    T = TypeVar("T")


class StuckError(RuntimeError):
    """Everything waits, and nothing will ever happen."""


class _Jump:
    """Stands where a loop has its selector: to wait for a time is to be there."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise StuckError("nothing is ready and no timer runs")
        self._loop.jump(timeout)
        return []


class SimLoop(asyncio.BaseEventLoop):
    """A loop of one thread in virtual time. `faults` has what callbacks and forgotten tasks raised."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = _Jump(self)
        self.faults: list[BaseException | str] = []
        self.set_exception_handler(_keep_fault)

    def time(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    def _process_events(self, event_list: list[object]) -> None:
        """No event comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody else could wake this loop."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something to its end, then end whatever is left."""
        try:
            return self.run_until_complete(work)
        finally:
            left = asyncio.all_tasks(self)
            for task in left:
                task.cancel()
            if left:
                self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.close()

    def close(self) -> None:
        """End. There is nothing to let go of."""
        if not self.is_closed():
            super().close()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Refused: a thread would decide the order of things."""
        del executor, args
        raise StuckError(f"{func} was to run in a thread")


def _keep_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    loop.faults.append(context.get("exception") or str(context.get("message")))
