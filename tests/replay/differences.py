"""Where our node does other than the servers of the captures, on purpose, and why.

One table: the tests of this folder excuse what it has and nothing else, and fail on a row that excuses nothing any
more. docs/reference/differences.md is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.replay.player import Deviation

_WITH_ITEMS = ("01a", "01b", "01c", "01d", "02", "03", "04", "05", "06b", "06c", "06d", "09a", "10")
_AS_NEWEST = "Where the two releases differ, ours does as 4.1.2."


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One intended difference: where it is seen, what the servers do, what ours does, and why."""

    id: str
    seen_in: tuple[str, ...]
    """How the names of the captures begin, `03a` or `4.1.2/03a`; each of them must show it."""
    messages: tuple[str, ...]
    """The labels of the messages, where `*` stands for anything."""
    fields: tuple[str, ...]
    servers: str
    ours: str
    why: str
    values: tuple[tuple[object, object], ...] = ()
    """Pairs of what was captured and what we give, where nothing else is excused."""
    connections: tuple[str, ...] = ()
    """The names of the connections, where it is excused on no other."""

    def is_for(self, release: str, scenario: str) -> bool:
        """Whether a capture is one of those that show it."""
        names = (scenario, f"{release}/{scenario}")
        return any(name.startswith(self.seen_in) for name in names)

    def covers(self, deviation: Deviation) -> bool:
        """Whether it excuses a deviation."""
        return (
            self.is_for(deviation.release, deviation.scenario)
            and any(fnmatchcase(deviation.message, message) for message in self.messages)
            and deviation.field in self.fields
            and (not self.values or (deviation.captured, deviation.got) in self.values)
            and (not self.connections or deviation.connection in self.connections)
        )


DIFFERENCES: tuple[Difference, ...] = (
    # ------------------------------------------------------------------------------------------------------ snapshots
    Difference(
        id="marker start",
        seen_in=("01a", "01b", "01d", "04", "05", "06c", "06d", "09a", "10a"),
        messages=("*",),
        fields=("start_seqno of live markers",),
        servers="a marker after the first starts at the first seqno that it brings",
        ours="it starts at the end of the snapshot before it",
        why="A consumer that was cut behind the first change, and is rolled back to the marker's start, would miss "
        "older changes that this snapshot has replaced.",
    ),
    Difference(
        id="snapshot start of a resumed consumer",
        seen_in=("4.1.2/07b",),
        messages=("stream_request",),
        fields=("snapshot_start",),
        servers="a consumer cut inside a snapshot asks again with the start of the marker that it got",
        ours="it asks with the end of the snapshot before it",
        why="The same rule: that is where the vbucket last was as its producer was.",
        values=((1, 0), (1, 61)),
    ),
    Difference(
        id="recent changes from memory",
        seen_in=("4.1.2/03a", "03b", "04", "05", "06c", "06d", "09a"),
        messages=("snapshot_marker",),
        fields=("flags",),
        servers="a stream that begins some seconds after its changes reads them from disk: flags 2",
        ours="it still has them in memory: flags 5",
        why="Servers drop checkpoints by a clock, ours keeps what was flushed last up to a size.",
        values=((2, 5),),
    ),
    Difference(
        id="checkpoint flag",
        seen_in=("04",),
        messages=("snapshot_marker",),
        fields=("flags",),
        servers="the first marker from memory has flag 4 when it begins a checkpoint of the server",
        ours="the first marker from memory always has it",
        why="Our node has no checkpoints. The flag lets a consumer begin one, and the first marker is a good place.",
        values=((1, 5),),
    ),
    Difference(
        id="nru",
        seen_in=_WITH_ITEMS,
        messages=("mutation",),
        fields=("nru",),
        servers="a byte that says how recently the item was used: 2 when it was written, 1 when it was read from disk",
        ours="0",
        why="It is the server's own note for its cache; consumers carry it and never look at it.",
        values=((2, 0), (1, 0)),
    ),
    # --------------------------------------------------------------------------------------------------------- history
    Difference(
        id="revision of a new key",
        seen_in=("01a", "01c", "01d", "02", "06d"),
        messages=("mutation", "deletion"),
        fields=("rev_seqno",),
        servers="a new key begins with one more than the highest revision of any deletion in its vbucket",
        ours="it begins with 1",
        why="It matters for a key whose tombstone was purged and that meets its own past on another cluster. Our node "
        "keeps tombstones for days, and a key that comes back goes on from the revision of its tombstone.",
        values=((3, 1), (5, 1), (7, 1), (4, 2), (6, 2)),
    ),
    Difference(
        id="a crash that lost nothing",
        seen_in=("04",),
        messages=("answer to get_failover_log",),
        fields=("entries", "body_length"),
        servers="every vbucket gets a new failover entry after every unclean stop",
        ours="only vbuckets that may have lost something get one",
        why="Which vbuckets had changes that were not on disk is marked in a file that survives the crash; the others "
        "need no rollback.",
        values=(
            *((16 * count, 16 * (count - 1)) for count in range(2, 7)),
            ((11, 0), (0,)),
            *(((*[18] * count, 10, 0), (*[18] * (count - 1), 10, 0)) for count in range(1, 5)),
        ),
    ),
    # ----------------------------------------------------------------------------------------------------- connections
    Difference(
        id="failover log before open",
        seen_in=("03b",),
        messages=("connection", "answer to get_failover_log"),
        fields=("closed", "presence"),
        servers="GET_FAILOVER_LOG before OPEN closes the connection",
        ours="it is answered",
        why="gomemcached asks for it before it opens.",
        connections=("b",),
    ),
    Difference(
        id="UPR requests",
        seen_in=("03b",),
        messages=("answer to stream_request",),
        fields=("status", "body_length"),
        servers="a stream request with 40 bytes of extras is refused with 0x04",
        ours="it begins a UPR stream",
        why="It is the stream request of the UPR document, and our node speaks UPR too.",
        connections=("f",),
    ),
    Difference(
        id="the end of a UPR stream",
        seen_in=("03b",),
        messages=("stream_end",),
        fields=("presence",),
        servers="nothing follows the refusal",
        ours="the UPR stream that was asked for ends at once: its end is 0",
        why="As above.",
        connections=("f",),
    ),
    Difference(
        id="commands of later releases",
        seen_in=("03b",),
        messages=("answer to system_event",),
        fields=("status", "body_length", "value"),
        servers="0x5f is not known: 0x81",
        ours="it is known, and malformed without its extras: 0x04",
        why="Later releases have the command.",
    ),
    Difference(
        id="control keys of later releases",
        seen_in=("06a",),
        messages=("answer to control supports_cursor_dropping",),
        fields=("status", "body_length"),
        servers="0x04",
        ours="success",
        why="Later releases have the key, and their consumers ask for it.",
    ),
    Difference(
        id="control keys by their beginning",
        seen_in=("06a",),
        messages=("answer to control con", "answer to control e"),
        fields=("status", "body_length"),
        servers="a key that some known key begins with is taken for it",
        ours="0x04",
        why="A slip of the servers: `e` is no key.",
    ),
    # ------------------------------------------------------------------------------------------------------- consumers
    Difference(
        id="mutations of 30 bytes",
        seen_in=("4.1.2/07b",),
        messages=("answer to mutation", "buffer_ack"),
        fields=("presence", "bytes_acked"),
        servers="a mutation with 30 bytes of extras is refused with 0x04",
        ours="it is taken, and acknowledged with the bytes that came",
        why="It is UPR's form, and a producer of UPR is served as such.",
        connections=("c51",),
    ),
    Difference(
        id="uuid after a rollback to 0",
        seen_in=("4.1.2/07b",),
        messages=("stream_request",),
        fields=("vbuuid",),
        servers="a replica that was rolled back to 0 makes a vbucket with a new uuid, and asks again with that",
        ours="it keeps its failover log",
        why="An empty vbucket is a part of every history; the producer's log replaces its own with the next answer.",
        connections=("c53",),
    ),
    # ----------------------------------------------------------------------------------------------------------- flush
    Difference(
        id="flush",
        seen_in=("09a", "09b", "3.0.3/09c"),
        messages=("answer to flush",),
        fields=("status", "body_length"),
        servers="FLUSH is refused with 0x86 until traffic is disabled, or altogether",
        ours="it is done",
        why="memcached does so, and its clients expect it. Traffic is never disabled: a node serves always.",
        values=((134, 0), (131, 0), (4, 0), (17, 0), (13, 0)),
    ),
    Difference(
        id="what a stream sees of a flush",
        seen_in=("09a",),
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
        seen_in=("09a",),
        messages=("stat vb_11:high_seqno", "stat vb_11:abs_high_seqno"),
        fields=("body_length", "value"),
        servers="the high seqno stays",
        ours="it counts the deletions",
        why="As above.",
    ),
    # ------------------------------------------------------------------------------------------------------------ TAP
    Difference(
        id="nru of TAP",
        seen_in=("08a", "4.1.2/08b_", "4.1.2/08b2", "08c", "08f2", "08g", "08i", "08j", "09c"),
        messages=("tap_mutation",),
        fields=("nru",),
        servers="the last engine byte says how recently the item was used",
        ours="0",
        why="As in DCP: it is the server's own note.",
        values=((1, 0), (2, 0)),
    ),
    Difference(
        id="items that come twice",
        seen_in=("08a_", "08i", "08j"),
        messages=("tap_mutation", "tap_delete"),
        fields=("repeated",),
        servers="what their checkpoints in memory hold is sent after the old items once more",
        ours="each version of an item comes once",
        why="Our node has no checkpoints in memory that it would have to go through.",
    ),
    Difference(
        id="checkpoints that are over",
        seen_in=("08i",),
        messages=("tap_checkpoint_start", "tap_checkpoint_end"),
        fields=("presence",),
        servers="start and end of a closed checkpoint stand around items that are sent once more",
        ours="after the old items comes the start of the open checkpoint",
        why="The same: these items are not sent again.",
        connections=("first",),
    ),
    Difference(
        id="future means future",
        seen_in=("08b2",),
        messages=("tap_delete",),
        fields=("presence",),
        servers="a client that wants later changes alone is also sent what the open checkpoint holds",
        ours="it is sent what is changed after it connected",
        why="That is what the document says, and what the client asked for.",
    ),
    Difference(
        id="which items ask for an ack",
        seen_in=("08f", "08i", "08j"),
        messages=("tap_mutation", "tap_delete"),
        fields=("tap_flags",),
        servers="those whose number divides by the interval, where controls take two numbers; and what is the last in "
        "the queue when it is sent, which is a matter of luck",
        ours="the same, where each message takes one number, and the queue is that of a vbucket",
        why="Numbers that are not used help nobody. When a client has read all, it is asked for an ack either way.",
        values=((0, 1), (1, 0)),
    ),
    Difference(
        id="keys only",
        seen_in=("08g",),
        messages=("tap_mutation",),
        fields=("tap_flags", "value", "body_length"),
        servers="KEYS_ONLY is ignored",
        ours="items come without values, and message flag 2 says so",
        why="The document has the flag; a client that asks for it wants it.",
    ),
    Difference(
        id="old items after a flush",
        seen_in=("09c",),
        messages=("tap_opaque", "tap_mutation"),
        fields=("presence", "order"),
        servers="after a flush all items are in memory, and come as later changes do, in no order of vbuckets",
        ours="old items come as always: vbucket by vbucket, between the messages that name them",
        why="Our node has no checkpoints in memory.",
    ),
    Difference(
        id="what a TAP stream sees of a flush",
        seen_in=("09c",),
        messages=("tap_flush", "tap_delete"),
        fields=("presence",),
        servers="nothing, and nothing of later changes either",
        ours="TAP flush (0x43), a deletion for each item, and later changes",
        why="The document describes the message. The deletions are for clients that do not know it, and for those that "
        "see only some vbuckets.",
    ),
    # ------------------------------------------------------------------------------------------------ stats and errors
    Difference(
        id="persisted seqnos in stats",
        seen_in=("07a", "08l", "09a", "10b", "11"),
        messages=("stat vb_*:last_persisted_*",),
        fields=("presence",),
        servers="`vbucket-seqno` has no seqnos of the disk",
        ours="it has three more lines",
        why="Later releases have them.",
    ),
    Difference(
        id="details of a vbucket",
        seen_in=("11",),
        messages=("stat vb_0:*",),
        fields=("presence",),
        servers="`vbucket-details` tells of hash tables, queues, checkpoints and files of the server",
        ours="it tells what our node has: state, items, seqnos",
        why="A number that means nothing here would mislead.",
    ),
    Difference(
        id="texts of errors",
        seen_in=("4.1.2/11",),
        messages=("answer to get_all_vb_seqnos", "answer to observe_seqno"),
        fields=("body_length", "value"),
        servers='a malformed request is answered by "Incorrect packet format" or "Invalid arguments"',
        ours="the text says what is wrong with it",
        why="Whoever reads it has to find the mistake. The status is the same.",
    ),
    # --------------------------------------------------------------------------------------- where 3.0.3 is not 4.1.2
    Difference(
        id="checkpoint flag of 3.0.3",
        seen_in=("3.0.3/02",),
        messages=("snapshot_marker",),
        fields=("flags",),
        servers="3.0.3 has no flag 4 on the first marker after a backfill",
        ours="it is there, as in 4.1.2",
        why=_AS_NEWEST,
        values=((1, 5),),
    ),
    Difference(
        id="control keys of 4.1.2",
        seen_in=("3.0.3/06a", "3.0.3/06d"),
        messages=("answer to control enable_ext_metadata", "answer to control set_priority"),
        fields=("status", "body_length"),
        servers="3.0.3 does not know them",
        ours="they are known",
        why=_AS_NEWEST,
    ),
    Difference(
        id="extended metadata",
        seen_in=("3.0.3/06d", "3.0.3/10a", "3.0.3/10b"),
        messages=("mutation", "deletion"),
        fields=("body_length", "meta"),
        servers="3.0.3 has none",
        ours="5 bytes behind the value where they were asked for",
        why=_AS_NEWEST,
    ),
    Difference(
        id="what a consumer asks for",
        seen_in=("3.0.3/07a", "3.0.3/07b", "3.0.3/07d", "3.0.3/07e", "3.0.3/10a", "3.0.3/10b"),
        messages=(
            "control connection_buffer_size",
            "control set_priority",
            "control enable_ext_metadata",
            "answer to control",
        ),
        fields=("presence", "value"),
        servers="3.0.3 has a buffer of 10 MiB and does not ask for priority and extended metadata",
        ours="50 MiB, and both are asked for",
        why=_AS_NEWEST,
    ),
    Difference(
        id="messages that 3.0.3 does not survive",
        seen_in=("3.0.3/07b",),
        messages=("connection", "answer to snapshot_marker", "answer to mutation"),
        fields=("closed", "presence"),
        servers="3.0.3 takes a marker that goes back, and ends at a mutation with seqno 0",
        ours="both are refused, with 0x22 and 0x04",
        why=_AS_NEWEST,
    ),
    Difference(
        id="state of a takeover",
        seen_in=("3.0.3/10b",),
        messages=("set_vbucket_state",),
        fields=("state",),
        servers="3.0.3 makes the new owner a replica (2) first",
        ours="pending (3)",
        why=_AS_NEWEST,
        values=((2, 3),),
    ),
    Difference(
        id="high seqno of what is not active",
        seen_in=("3.0.3/07a", "3.0.3/10b"),
        messages=("stat vb_0:high_seqno",),
        fields=("value", "body_length"),
        servers="3.0.3 tells the end of an older snapshot",
        ours="the high seqno",
        why=_AS_NEWEST,
    ),
    Difference(
        id="flush forgets in 3.0.3",
        seen_in=("3.0.3/09a", "3.0.3/09c"),
        messages=("answer to stream_request", "answer to enable_traffic"),
        fields=("status", "body_length", "value"),
        servers="3.0.3 begins a new history at 0, so that streams roll back; one text has another word",
        ours="the history goes on",
        why=_AS_NEWEST,
    ),
    Difference(
        id="seqnos and tokens",
        seen_in=("3.0.3/11",),
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
    ),
    # --------------------------------------------------------------------------------------------------------- TAP in
    Difference(
        id="a flush by TAP is done",
        seen_in=("08l",),
        messages=("answer to tap_flush",),
        fields=("status", "body_length", "value"),
        servers="it is refused, as every flush is while traffic is enabled",
        ours="every item is removed",
        why="It is sent by a server that did it; and FLUSH is done here, too.",
    ),
    Difference(
        id="an item without engine bytes",
        seen_in=("08l",),
        messages=("connection", "answer to tap_mutation"),
        fields=("closed", "presence"),
        servers="the process aborts",
        ours="the item is stored, with its next revision",
        why="tap.md draws it so.",
    ),
)


def excuse(deviation: Deviation) -> Difference | None:
    """The row that excuses a deviation."""
    return next((row for row in DIFFERENCES if row.covers(deviation)), None)
