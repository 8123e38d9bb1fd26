"""What the captures suppose and do not show: the data before, the writes between, and when a server was restarted.

Captures that were taken from one server, one after another, are one story and are played on one node.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.ids import Cas, Opaque, Seqno, VBucketId
from headrace.node import NodeLimits
from headrace.wire import Request, encode
from headrace.wire.catalogue import (
    CheckpointIds,
    CreateCheckpoint,
    Delete,
    Done,
    ErrorReply,
    Get,
    Mutation,
    Set,
    SetVBucket,
    Touch,
)
from tests.replay.player import Deviation, Player, Stage
from tests.replay.scenes import Scene, Story
from tests.replay.servers import Embedded, Process, wait_for_disk
from tests.replay.stories_tap_in import TAP_IN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.replay.servers import Served

ACTIVE, REPLICA, PENDING, DEAD = 1, 2, 3, 4


# -------------------------------------------------------------------------------------------------- stage directions


def _set(key: str, value: str, *, vbucket: int = 0, flags: int = 0, expiry: int = 0) -> Request:
    return Set(vbucket=VBucketId(vbucket), key=key.encode(), value=value.encode(), flags=flags, expiry=expiry)


def _delete(key: str, *, vbucket: int = 0) -> Request:
    return Delete(vbucket=VBucketId(vbucket), key=key.encode())


def _put(stage: Stage, *requests: Request, server: int = 0) -> None:
    """Do some writes at once, on a connection of their own."""
    with stage.talk(server) as talk:
        talk.send(*requests)
        for request in requests:
            reply = talk.receive()
            assert reply.status == 0, f"{request}: {reply}"


def writes(*requests: Request, whole: bool = False, server: int = 0) -> Callable[[Stage], None]:
    """Some writes, and perhaps a wait until the disk has them."""

    def do(stage: Stage) -> None:
        _put(stage, *requests, server=server)
        if whole:
            settle(stage)

    return do


def settle(stage: Stage) -> None:
    """Wait until the disk has everything."""
    for number in range(len(stage.servers)):
        with stage.talk(number) as talk:
            wait_for_disk(talk)


def restart(stage: Stage) -> None:
    """Stop the node cleanly and start it again."""
    stage.servers[0].restart()


def kill(stage: Stage) -> None:
    """Kill the node."""
    stage.servers[0].kill()


def start(stage: Stage) -> None:
    """Start the node that was killed."""
    stage.servers[0].start()


def kill_with_nothing_lost(stage: Stage) -> None:
    """Kill the node when the disk has everything, and start it again."""
    settle(stage)
    kill(stage)
    start(stage)


def _set_states(stage: Stage, states: Mapping[int, int], *, server: int = 0) -> None:
    with stage.talk(server) as talk:
        for vbucket, state in states.items():
            talk.get(SetVBucket(vbucket=VBucketId(vbucket), state=state), Done)


# -------------------------------------------------------------------------------------------- 01, 02: one server's life


def _get_expired(stage: Stage) -> None:
    """Ask for exp1 until it is gone, which is a second after it was set."""
    end = time.monotonic() + 10
    with stage.talk() as talk:
        while not isinstance(talk.ask(Get(key=b"exp1")), ErrorReply):
            assert time.monotonic() < end, "exp1 did not expire"
            time.sleep(0.05)


def _before_pager(stage: Stage) -> None:
    _put(stage, _set("willexpire", "bye", vbucket=1, flags=5, expiry=1))


def _pager(stage: Stage) -> None:
    """Let the pager run when the time of the item, and the disk's knowledge of it, have come."""
    settle(stage)
    time.sleep(2.05)  # an expiry is in whole seconds
    stage.servers[0].expire()


def _restart_whole(stage: Stage) -> None:
    settle(stage)
    restart(stage)


LIFE = Story(
    scenes=(
        Scene(scenario="01_workload"),
        Scene(
            scenario="01a_dcp_memory_stream",
            cues={
                "key00 set twice": writes(
                    _set("key00", "new value"), _set("key00", "newer value"), _set("newkey", "x" * 40)
                ),
                "GET of expired exp1": _get_expired,
                "TOUCH of exp_far": writes(Touch(key=b"exp_far", expiry=7200)),
            },
        ),
        Scene(scenario="01b_dcp_expiry_pager", before=_before_pager, cues={(b"willexpire", 2): _pager}),
        Scene(scenario="01c_dcp_disk_backfill", before=_restart_whole),
        Scene(
            scenario="01d_dcp_disk_backfill_then_memory",
            cues={
                "live1 and live2 set": writes(_set("live1", "1"), _set("live2", "2"), _delete("live1")),
                "five sets pipelined": writes(*(_set(f"pipe{number}", "p") for number in range(5))),
            },
        ),
        Scene(
            scenario="02_dcp_resume",
            before=settle,
            cues={b"afterresume": writes(_set("afterresume", "z"))},
        ),
    )
)

# -------------------------------------------------------------------------------- 03, 04: refusals, a crash, rollbacks


def _ten_each(stage: Stage) -> None:
    _put(stage, *(_set(f"k{vb}-{number}", "v", vbucket=vb) for vb in range(8) for number in range(10)))
    settle(stage)


REFUSALS = Story(
    servers=(Process,),
    scenes=(
        Scene(scenario="03a_dcp_stream_req_errors", before=_ten_each),
        Scene(scenario="03b_dcp_malformed"),
        Scene(
            scenario="04_failover_log_crash_rollback",
            before=settle,
            cues={
                b"lost0": writes(*(_set(f"lost{number}", "v", vbucket=2) for number in range(6))),
                "server closed the connection": kill,
                "server killed and restarted": start,
                "eight writes": writes(*(_set(f"newhist{number}", "v", vbucket=2) for number in range(8)), whole=True),
                b"conn04b": kill_with_nothing_lost,
                b"conn04c": _restart_whole,
            },
        ),
    ),
)

# ------------------------------------------------------------------------- 05, 06, 11: ends, control, flow, seqnos


def _five_each(stage: Stage) -> None:
    _put(stage, *(_set(f"k{vb}-{number}", f"v{number}", vbucket=vb) for vb in range(16) for number in range(5)))
    settle(stage)


def _before_seqnos(stage: Stage) -> None:
    """Vbucket 10 was written to between the captures."""
    _put(stage, *(_set(f"between{number}", "v", vbucket=10) for number in range(4)))
    _set_states(stage, {13: DEAD, 14: REPLICA, 15: PENDING})
    settle(stage)


ENDS = Story(
    scenes=(
        Scene(
            scenario="05_dcp_stream_end",
            before=_five_each,
            cues={"write after close and reopen": writes(_set("zz", "1", vbucket=1))},
        ),
        Scene(scenario="06a_dcp_control"),
        Scene(
            scenario="06c_dcp_flow_control",
            before=writes(*(_set(f"fc-{number:02}", "V" * 20, vbucket=8) for number in range(40)), whole=True),
            cues={b"big": writes(_set("big", "B" * 2000, vbucket=8))},
        ),
        Scene(
            scenario="06d_dcp_ext_metadata",
            cues={
                (b"k9-1", 6): writes(_delete("k9-1", vbucket=9)),
                b"live": writes(_set("live", "1", vbucket=9), _delete("k9-2", vbucket=9)),
            },
        ),
        Scene(scenario="11_seqnos", before=_before_seqnos),
    )
)

NOOP_AND_FLUSH = Story(
    scenes=(
        Scene(scenario="06b_dcp_noop", before=_five_each),
        Scene(scenario="09a_flush_dcp"),
        Scene(scenario="09b_flush_disabled"),
    )
)

# ------------------------------------------------------------------------------------- 07: the node as a consumer


def _replicas(stage: Stage) -> None:
    _set_states(stage, {**dict.fromkeys(range(8), REPLICA), 8: ACTIVE, 9: PENDING})


def _send_large(stage: Stage) -> None:
    """120 mutations of 100,000 bytes: the capture tells of them and leaves them out."""
    assert stage.player is not None
    for number in range(1, 121):
        mutation = Mutation(
            vbucket=VBucketId(3),
            opaque=Opaque(16777216),
            cas=Cas(number),
            by_seqno=Seqno(number),
            rev_seqno=1,
            nru=0,
            key=f"big{number}".encode(),
            value=b"x" * 100_000,
        )
        stage.player.send("", encode(mutation))


CONSUMER = Story(
    scenes=(
        Scene(scenario="07a_consumer_basic", before=_replicas),
        Scene(scenario="07b_consumer_errors"),
        Scene(scenario="07d_consumer_addstream_takeover"),
        Scene(scenario="07e_consumer_buffer_ack", cues={"120 mutations": _send_large}),
    )
)

# -------------------------------------------------------------------------------------------------- 10: two nodes


def _two_nodes(stage: Stage) -> None:
    _put(stage, *(_set(f"k{number}", f"value{number}", vbucket=vb) for number in range(10) for vb in range(2)))
    _put(stage, _delete("k3"))
    _set_states(stage, {0: REPLICA, 1: REPLICA}, server=1)


def _same_history(stage: Stage) -> None:
    """Both nodes have what the notes say of the servers: the same uuid and the same high seqno."""
    end = time.monotonic() + 10
    while True:
        told = [_history_of(stage, server) for server in range(2)]
        if told[0] == told[1]:
            break
        assert time.monotonic() < end, told
        time.sleep(0.02)
    assert told[0][0] == "16"


def _history_of(stage: Stage, server: int) -> tuple[str, str]:
    with stage.talk(server) as talk:
        stats = talk.stats(b"vbucket-seqno 1")
    return stats["vb_1:high_seqno"], stats["vb_1:uuid"]


TWO = Story(
    servers=(Embedded, Embedded),
    scenes=(
        Scene(
            scenario="10a_replication_two_servers",
            before=_two_nodes,
            cues={
                b"m0": writes(*(_set(f"m{number}", "x", vbucket=1) for number in range(5)), _delete("m2", vbucket=1)),
                "n1: vb_1:high_seqno": _same_history,
            },
            relayed=("prod", "cons"),
        ),
        Scene(scenario="10b_takeover_two_servers", relayed=("prod", "cons")),
    ),
)

# ------------------------------------------------------------------------------------------------------- 08: TAP

TAP_VBUCKETS = 8
_LIMITS = NodeLimits(tap_ack_interval=5, tap_ack_window=3, tap_ack_s_max=6, tap_noop_s=3)
"""As the captured servers were told."""


def _before_tap(stage: Stage) -> None:
    for vb in range(4):
        _put(
            stage,
            _set(f"vb{vb}-k0", "val0", vbucket=vb, flags=0xDEADBEEF),
            _set(f"vb{vb}-k1", "val1", vbucket=vb, expiry=3600),
            _set(f"vb{vb}-k2", "val2", vbucket=vb),
        )
    _put(stage, _set("vb0-k2", "val2-updated"), _delete("vb1-k2", vbucket=1), _set("json", '{"a":1}'))
    settle(stage)


def _sets(prefix: str, count: int, vbucket: int) -> Callable[[Stage], None]:
    return writes(*(_set(f"{prefix}{number}", "x", vbucket=vbucket) for number in range(count)), whole=True)


def _two_checkpoints(stage: Stage) -> None:
    _put(stage, _set("r0", "x", vbucket=6))
    with stage.talk() as talk:
        talk.get(CreateCheckpoint(vbucket=VBucketId(6)), CheckpointIds)
    _put(stage, *(_set(f"r{number}", "x", vbucket=6) for number in range(1, 4)))
    settle(stage)


def _client_leaves(stage: Stage) -> None:
    assert stage.player is not None
    stage.player.hang_up("first")
    _sets("t", 3, vbucket=6)(stage)


_LIVE_2 = writes(_set("live2", "22", vbucket=2), _delete("vb2-k0", vbucket=2), whole=True)
_LIVE_3 = writes(_set("live3", "22", vbucket=3), whole=True)

TAP = Story(
    servers=(lambda: Embedded(TAP_VBUCKETS, _LIMITS),),
    scenes=(
        Scene(
            scenario="08a_tap_flags0",
            before=_before_tap,
            cues={
                "live SET and DELETE": writes(
                    _set("live", "1", flags=0x01020304, expiry=1000), _delete("vb0-k0"), whole=True
                )
            },
        ),
        Scene(scenario="08a2_tap_no_extras"),
        Scene(scenario="08b_tap_backfill", seen={b"live2": _LIVE_2}, unseen={"3.0.3": _LIVE_2}),
        Scene(scenario="08b2_tap_backfill_future", seen={b"live3": _LIVE_3}, unseen={"3.0.3": _LIVE_3}),
        Scene(scenario="08b3_tap_backfill_short"),
        Scene(scenario="08c_tap_dump"),
        Scene(scenario="08e_tap_list_vbuckets"),
        Scene(scenario="08f_tap_ack"),
        Scene(
            scenario="08f2_tap_ack_live",
            cues={b"a0": _sets("a", 30, vbucket=4), "30 more sets": _sets("b", 30, vbucket=4)},
        ),
        Scene(
            scenario="08g_tap_keys_only",
            before=writes(*(_set(f"{letter}{number}", "x", vbucket=5) for letter in "nm" for number in range(8))),
        ),
        Scene(
            scenario="08i_tap_registered",
            before=_two_checkpoints,
            cues={
                ("create_checkpoint", 2): _sets("s", 4, vbucket=6),
                "client left": _client_leaves,
            },
        ),
        Scene(scenario="08j_tap_takeover", before=_sets("tk", 4, vbucket=7)),
    ),
)


def _before_flush(stage: Stage) -> None:
    _put(stage, _set("afterflush", "1", vbucket=11), *(_set(f"ft{number}", "v") for number in range(3)))


TAP_FLUSH = Story(scenes=(Scene(scenario="09c_flush_tap", before=_before_flush),))

STORIES = {
    "life": LIFE,
    "refusals": REFUSALS,
    "ends": ENDS,
    "noop and flush": NOOP_AND_FLUSH,
    "consumer": CONSUMER,
    "two nodes": TWO,
    "tap": TAP,
    "tap and flush": TAP_FLUSH,
    "tap in": TAP_IN,
}


def tell(release: str, story: Story) -> dict[str, list[Deviation]]:
    """Play a story; give the deviations of each of its scenarios."""
    servers: list[Served] = []
    try:
        servers.extend(make() for make in story.servers)
        stage = Stage(servers)
        return {scene.scenario: _play(release, scene, stage) for scene in story.scenes}
    finally:
        for server in servers:
            server.close()


def _play(release: str, scene: Scene, stage: Stage) -> list[Deviation]:
    if scene.before is not None:
        scene.before(stage)
    is_seen = release not in scene.unseen
    cues = {**scene.cues, **(scene.seen if is_seen else {})}
    deviations = Player(release, scene.scenario, stage, cues, scene.relayed).play()
    if not is_seen:
        scene.unseen[release](stage)
    return deviations
