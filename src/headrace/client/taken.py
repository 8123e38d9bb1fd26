"""How far a reader's user is: what was handed out, not what was received. Saved positions come of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client.events import Batch, Event, RolledBack, StreamEnded, StreamStarted
from headrace.protocol.subscription import Progress

if TYPE_CHECKING:
    from headrace.history import Position
    from headrace.ids import Seqno, VBucketId
    from headrace.protocol.subscription import Subscription


class Taken:
    """The progress of each vbucket at the user."""

    def __init__(self) -> None:
        self._progress: dict[VBucketId, Progress] = {}
        self._subscriptions: dict[VBucketId, Subscription] = {}

    def begin(self, subscription: Subscription) -> None:
        """A vbucket is read from here on."""
        self._subscriptions[subscription.vbucket] = subscription
        self._progress[subscription.vbucket] = Progress(subscription.position)

    @property
    def positions(self) -> dict[VBucketId, Position]:
        """Where to go on after what was taken."""
        return {vbucket: progress.position for vbucket, progress in self._progress.items()}

    def seqno(self, vbucket: VBucketId) -> Seqno:
        """The last change of a vbucket that was taken."""
        return self._progress[vbucket].seqno

    def take(self, event: Event) -> None:
        """An event was handed to whom it is for: positions follow, and the server may send more."""
        match event:
            case Batch():
                for mark in event.marks:
                    self._advance(*mark)
                event.link.worked_off(event.flow_bytes)
            case StreamStarted():
                self._progress[event.vbucket].begin(event.log)
            case RolledBack():
                self._progress[event.vbucket].go_back(event.whole, event.log)
            case StreamEnded():
                if event.mark is not None:
                    self._advance(*event.mark)

    def advance(self, vbucket: VBucketId, seqno: Seqno, end: Seqno) -> None:
        """One change of a batch was handed on."""
        self._advance(vbucket, seqno, end, seqno if seqno == end else None)

    def _advance(
        self, vbucket: VBucketId, seqno: Seqno, end: Seqno, whole: Seqno | None, before: tuple[Seqno, ...] = ()
    ) -> None:
        stop = self._subscriptions[vbucket].end_seqno
        self._progress[vbucket].advance(seqno=min(seqno, stop), end=end, whole=whole, before=before)


__all__ = ["Taken"]
