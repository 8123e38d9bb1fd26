"""Every bound that `explain` keeps, by name, so that no input can take all memory or run for ever.

A user never sees the names: `size` says a bound in words. docs/reference/explain.md lists them all.
"""

FILE_BYTES_MAX = 1 << 30
"""The largest input, from a file or from standard input."""

TEXT_BYTES_MAX = 16 << 20
"""The largest hex text: it is read whole, because an odd digit at its end makes all of it doubtful."""

TEXT_LINES_MAX = 1_000_000
"""The most lines of hex text."""

WHOLE_BYTES_MAX = 4 << 20
"""A binary input up to this size may be one message that contradicts its header; a larger one is a stream."""

LINE_BYTES_MAX = 128 << 20
"""The longest line of a JSON-lines capture: a largest message in hex, and room for its description."""

PACKET_BYTES_MAX = 1 << 20
"""The largest packet in a capture file. Wireshark writes 256 KiB at most; a larger length is damage."""

PACKETS_MAX = 20_000_000
"""The most packets that are read from one capture file."""

CONNECTIONS_MAX = 65_536
"""The most TCP connections that are followed in one capture file."""

REASSEMBLY_BYTES_MAX = 4 << 20
"""How much of one direction of a connection waits for an earlier segment before that one counts as lost."""

REASSEMBLY_SEGMENTS_MAX = 4096
"""How many segments wait likewise."""

HELD_MESSAGES_MAX = 65_536
"""How many messages wait, over all conversations, until it is known which dialect they are in."""

HELD_BYTES_MAX = 64 << 20
"""How many bytes of messages wait likewise."""

JUDGED_MESSAGES_MAX = 4096
"""How many messages of a conversation are looked at to find its dialect."""

FAULTS_MAX = 20
"""After so many damaged lines or records, reading the rest of an input is given up."""

SPLIT_CAPTURE = "editcap -c 100000 big.pcap part.pcap"
"""The command that cuts a packet capture into smaller ones."""

TEXT_TO_BINARY = "xxd -r -p"
"""The command that turns plain hex into bytes."""


def size(count: int) -> str:
    """Write a number of bytes in words and in full."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name} ({count} bytes)"
    return f"{count} bytes"
