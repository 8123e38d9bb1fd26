"""What a story is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.replay.servers import Embedded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.replay.player import Cue, Stage
    from tests.replay.servers import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One capture: what happens before it, and at which cues something happens that it does not show."""

    scenario: str
    before: Callable[[Stage], None] | None = None
    cues: Mapping[Cue, Callable[[Stage], None]] = field(default_factory=dict)
    relayed: tuple[str, str] | None = None
    unseen: Mapping[str, Callable[[Stage], None]] = field(default_factory=dict)
    """By release, what was done at the end of a capture that no longer shows it; the other releases have a cue."""
    seen: Mapping[Cue, Callable[[Stage], None]] = field(default_factory=dict)
    """More cues, of the releases that `unseen` does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Captures of one server, or of one pair of servers, in their order."""

    scenes: tuple[Scene, ...]
    servers: tuple[Callable[[], Served], ...] = (Embedded,)
