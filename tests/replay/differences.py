"""Where our node does other than the servers of the captures, on purpose, and why.

One table: the tests of this folder excuse what it has and nothing else, and fail on a row that excuses nothing any
more. docs/reference/differences.md is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tests.replay.captures import RELEASES

if TYPE_CHECKING:
    from tests.replay.player import Deviation

EVERYWHERE = ("*",)
NEWEST = "4.1.2"
OLDEST = "3.0.3"
_AS_NEWEST = "Where the two releases differ, ours does as 4.1.2."


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One intended difference: where it is seen, what the servers do, what ours does, and why."""

    id: str
    scenarios: tuple[str, ...]
    """How the names of the captures begin; each must show it."""
    messages: tuple[str, ...]
    """The labels of the messages, where `*` stands for anything."""
    fields: tuple[str, ...]
    servers: str
    ours: str
    why: str
    releases: tuple[str, ...] = RELEASES
    values: tuple[object, object] | None = None
    """What was captured and what we give, where only that is excused."""

    def covers(self, deviation: Deviation) -> bool:
        """Whether it excuses a deviation."""
        return (
            any(fnmatchcase(deviation.scenario, f"{scenario}*") for scenario in self.scenarios)
            and deviation.release in self.releases
            and any(fnmatchcase(deviation.message, message) for message in self.messages)
            and deviation.field in self.fields
            and self.values in {None, (deviation.captured, deviation.got)}
        )


DIFFERENCES: tuple[Difference, ...] = (
    # ------------------------------------------------------------------------------------------------------ snapshots
    Difference(
        id="marker start",
        scenarios=("01a", "01b", "01d", "04", "05", "06c", "06d", "09a", "10a"),
        messages=("*",),
        fields=("start_seqno of live markers",),
        servers="a marker after the first starts at the first seqno that it brings",
        ours="it starts at the end of the snapshot before it",
        why="A consumer that was cut behind the first change, and is rolled back to the marker's start, would miss "
        "older changes that this snapshot has replaced.",
    ),
    Difference(
        id="snapshot start of a resumed consumer",
        scenarios=("07b",),
        messages=("stream_request",),
        fields=("snapshot_start",),
        servers="a consumer cut inside a snapshot asks again with the start of the marker that it got",
        ours="it asks with the end of the snapshot before it",
        why="The same rule: that is where the vbucket last was as its producer was.",
        releases=(NEWEST,),
    ),
    Difference(
        id="recent changes from memory",
        scenarios=("03a", "03b", "04", "05", "06c", "06d", "09a"),
        messages=("snapshot_marker",),
        fields=("flags",),
        servers="a stream that begins some seconds after its changes reads them from disk: flags 2",
        ours="it still has them in memory: flags 5",
        why="Servers drop checkpoints by a clock, ours keeps what was flushed last up to a size.",
        values=(2, 5),
    ),
    Difference(
        id="checkpoint flag",
        scenarios=("04",),
        messages=("snapshot_marker",),
        fields=("flags",),
        servers="the first marker from memory has flag 4 when it begins a checkpoint of the server",
        ours="the first marker from memory always has it",
        why="Our node has no checkpoints. The flag lets a consumer begin one, and the first marker is a good place.",
        values=(1, 5),
    ),
    Difference(
        id="nru",
        scenarios=EVERYWHERE,
        messages=("mutation",),
        fields=("nru",),
        servers="a byte that says how recently the item was used: 2 when it was written, 1 when it was read from disk",
        ours="0",
        why="It is the server's own note for its cache; consumers carry it and never look at it.",
    ),
    # --------------------------------------------------------------------------------------------------------- history
    Difference(
        id="revision of a new key",
        scenarios=("01a", "01c", "01d", "02", "06d"),
        messages=("mutation", "deletion"),
        fields=("rev_seqno",),
        servers="a key that was not there begins with one more than the highest revision of any deletion in its vbucket",
        ours="it begins with 1",
        why="It matters for a key whose tombstone was purged and that meets its own past on another cluster. Our node "
        "keeps tombstones for days, and a key that comes back goes on from the revision of its tombstone.",
    ),
    Difference(
        id="a crash that lost nothing",
        scenarios=("04",),
        messages=("answer to get_failover_log",),
        fields=("entries", "body_length"),
        servers="every vbucket gets a new failover entry after every unclean stop",
        ours="only vbuckets that may have lost something get one",
        why="Which vbuckets had changes that were not on disk is marked in a file that survives the crash; the others "
        "need no rollback.",
    ),
    # ----------------------------------------------------------------------------------------------------- connections
    Difference(
        id="failover log before open",
        scenarios=("03b",),
        messages=("connection", "answer to get_failover_log"),
        fields=("closed", "presence"),
        servers="GET_FAILOVER_LOG before OPEN closes the connection",
        ours="it is answered",
        why="Go clients ask for it on a plain connection, and newer servers answer.",
    ),
    Difference(
        id="UPR requests",
        scenarios=("03b",),
        messages=("answer to stream_request",),
        fields=("status", "body_length"),
        servers="a stream request with 40 bytes of extras is refused with 0x04",
        ours="it begins a UPR stream",
        why="It is the stream request of the UPR document, and our node speaks UPR too.",
    ),
    Difference(
        id="the end of a UPR stream",
        scenarios=("03b",),
        messages=("stream_end",),
        fields=("presence",),
        servers="nothing follows the refusal",
        ours="the UPR stream that was asked for ends at once: its end is 0",
        why="As above.",
    ),
    Difference(
        id="commands of later releases",
        scenarios=("03b",),
        messages=("answer to system_event",),
        fields=("status", "body_length", "value"),
        servers="0x5f is not known: 0x81",
        ours="it is known, and malformed without its extras: 0x04",
        why="Later releases have the command.",
    ),
    Difference(
        id="control keys of later releases",
        scenarios=("06a",),
        messages=("answer to control supports_cursor_dropping",),
        fields=("status", "body_length"),
        servers="0x04",
        ours="success",
        why="Later releases have the key, and their consumers ask for it.",
    ),
    Difference(
        id="control keys by their beginning",
        scenarios=("06a",),
        messages=("answer to control con", "answer to control e"),
        fields=("status", "body_length"),
        servers="a key that some known key begins with is taken for it",
        ours="0x04",
        why="A slip of the servers: `e` is no key.",
    ),
    # ------------------------------------------------------------------------------------------------------- consumers
    Difference(
        id="uuid after a rollback to 0",
        scenarios=("07b",),
        messages=("stream_request",),
        fields=("vbuuid",),
        servers="a replica that was rolled back to 0 makes a vbucket with a new uuid, and asks again with that",
        ours="it keeps its failover log",
        why="An empty vbucket is a part of every history; the producer's log replaces its own with the next answer.",
        releases=(NEWEST,),
    ),
    # ----------------------------------------------------------------------------------------------------------- flush
    Difference(
        id="flush",
        scenarios=("09a", "09b"),
        messages=("answer to flush",),
        fields=("status", "body_length", "value"),
        servers="FLUSH is refused with 0x86 until traffic is disabled, or altogether",
        ours="it is done",
        why="memcached does so, and its clients expect it. Traffic is never disabled: a node serves always.",
    ),
    Difference(
        id="what a stream sees of a flush",
        scenarios=("09a",),
        messages=("deletion", "mutation", "snapshot_marker"),
        fields=(
            "order",
            "presence",
            "opcode",
            "datatype",
            "extras_length",
            "key_length",
            "body_length",
            "end_seqno",
        ),
        servers="nothing: streams end up with items that are gone",
        ours="a deletion for each item, so that seqnos of later changes are higher",
        why="A consumer is to have what the node has.",
    ),
    Difference(
        id="seqnos after a flush",
        scenarios=("09a",),
        messages=("stat vb_11:high_seqno", "stat vb_11:abs_high_seqno"),
        fields=("body_length", "value"),
        servers="the high seqno stays",
        ours="it counts the deletions",
        why="As above.",
    ),
    # ------------------------------------------------------------------------------------------------ stats and errors
    Difference(
        id="persisted seqnos in stats",
        scenarios=("07a", "09a", "10b", "11"),
        messages=("stat vb_*:last_persisted_*",),
        fields=("presence",),
        servers="`vbucket-seqno` has no seqnos of the disk",
        ours="it has three more lines",
        why="Later releases have them.",
    ),
    Difference(
        id="details of a vbucket",
        scenarios=("11",),
        messages=("stat vb_0:*",),
        fields=("presence", "value", "body_length"),
        servers="`vbucket-details` tells of hash tables, queues, checkpoints and files of the server",
        ours="it tells what our node has: state, items, seqnos",
        why="A number that means nothing here would mislead.",
    ),
    Difference(
        id="texts of errors",
        scenarios=("11",),
        messages=("answer to get_all_vb_seqnos", "answer to observe_seqno"),
        fields=("body_length", "value"),
        servers='a malformed request is answered by "Incorrect packet format" or "Invalid arguments"',
        ours="the text says what is wrong with it",
        why="Whoever reads it has to find the mistake. The status is the same.",
        releases=(NEWEST,),
    ),
    # --------------------------------------------------------------------------------------- where 3.0.3 is not 4.1.2
    Difference(
        id="checkpoint flag of 3.0.3",
        scenarios=("02",),
        messages=("snapshot_marker",),
        fields=("flags",),
        servers="3.0.3 has no flag 4 on the first marker after a backfill",
        ours="it is there, as in 4.1.2",
        why=_AS_NEWEST,
        releases=(OLDEST,),
        values=(1, 5),
    ),
    Difference(
        id="control keys of 4.1.2",
        scenarios=("06a", "06d"),
        messages=("answer to control enable_ext_metadata", "answer to control set_priority"),
        fields=("status", "body_length"),
        servers="3.0.3 does not know them",
        ours="they are known",
        why=_AS_NEWEST,
        releases=(OLDEST,),
    ),
    Difference(
        id="extended metadata",
        scenarios=("06d", "10a", "10b"),
        messages=("mutation", "deletion"),
        fields=("body_length", "meta"),
        servers="3.0.3 has none",
        ours="5 bytes behind the value where they were asked for",
        why=_AS_NEWEST,
        releases=(OLDEST,),
    ),
    Difference(
        id="what a consumer asks for",
        scenarios=("07a", "07b", "07d", "07e", "10a", "10b"),
        messages=("control *", "answer to control"),
        fields=("presence", "value"),
        servers="3.0.3 has a buffer of 10 MiB and does not ask for priority and extended metadata",
        ours="50 MiB, and both are asked for",
        why=_AS_NEWEST,
        releases=(OLDEST,),
    ),
    Difference(
        id="messages that 3.0.3 does not survive",
        scenarios=("07b",),
        messages=("connection", "answer to snapshot_marker", "answer to mutation"),
        fields=("closed", "presence"),
        servers="3.0.3 takes a marker that goes back, and ends at a mutation with seqno 0",
        ours="both are refused, with 0x22 and 0x04",
        why=_AS_NEWEST,
        releases=(OLDEST,),
    ),
    Difference(
        id="state of a takeover",
        scenarios=("10b",),
        messages=("set_vbucket_state",),
        fields=("state",),
        servers="3.0.3 makes the new owner a replica (2) first",
        ours="pending (3)",
        why=_AS_NEWEST,
        releases=(OLDEST,),
    ),
    Difference(
        id="high seqno of what is not active",
        scenarios=("07a", "10b"),
        messages=("stat vb_0:high_seqno",),
        fields=("value", "body_length"),
        servers="3.0.3 tells the end of an older snapshot",
        ours="the high seqno",
        why=_AS_NEWEST,
        releases=(OLDEST,),
    ),
    Difference(
        id="flush forgets in 3.0.3",
        scenarios=("09a",),
        messages=("answer to stream_request", "answer to enable_traffic"),
        fields=("status", "body_length", "value"),
        servers="3.0.3 begins a new history at 0, so that streams roll back; one text has another word",
        ours="the history goes on",
        why=_AS_NEWEST,
        releases=(OLDEST,),
    ),
    Difference(
        id="seqnos and tokens",
        scenarios=("11",),
        messages=(
            "answer to get_all_vb_seqnos",
            "answer to observe_seqno",
            "answer to hello",
            "answer to set",
            "answer to delete",
        ),
        fields=("status", "extras_length", "body_length", "value", "features", "seqno"),
        servers="3.0.3 does not know GET_ALL_VB_SEQNOS, OBSERVE_SEQNO and mutation tokens",
        ours="they are known",
        why=_AS_NEWEST,
        releases=(OLDEST,),
    ),
)


def excuse(deviation: Deviation) -> Difference | None:
    """The row that excuses a deviation."""
    return next((row for row in DIFFERENCES if row.covers(deviation)), None)
