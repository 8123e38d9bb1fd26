"""What capture 08l_tap_consumer supposes and does not show: the states of its vbuckets, and which are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ids import VBucketId
from headrace.wire.catalogue import DeleteVBucket, Done, SetVBucket
from tests.replay.scenes import Scene, Story
from tests.replay.servers import Embedded

if TYPE_CHECKING:
    from tests.replay.player import Stage

_REPLICA, _PENDING, _DEAD = 2, 3, 4


def _states(stage: Stage) -> None:
    states = {1: _REPLICA, 2: _PENDING, 50: _DEAD, 60: _DEAD}
    with stage.talk() as talk:
        for vbucket, state in states.items():
            talk.get(SetVBucket(vbucket=VBucketId(vbucket), state=state), Done)
            if state == _DEAD:
                talk.get(DeleteVBucket(vbucket=VBucketId(vbucket)), Done)


TAP_IN = Story(scenes=(Scene(scenario="08l_tap_consumer", before=_states),), servers=(lambda: Embedded(vbuckets=64),))
