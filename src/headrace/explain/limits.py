"""Every bound that `explain` keeps, by name, so that no input can take all memory or run for ever."""

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

BODY_BYTES_MAX = 64 << 20
"""In a stream, a header that promises a longer body is no header. Servers refuse bodies above 30 MiB."""

HELD_MESSAGES_MAX = 65_536
"""How many messages wait, over all conversations, until it is known which dialect they are in."""

HELD_BYTES_MAX = 64 << 20
"""How many bytes of messages wait likewise."""

JUDGED_MESSAGES_MAX = 4096
"""How many messages of a conversation are looked at to find its dialect."""

FAULTS_MAX = 20
"""After so many damaged lines or records, reading the rest of an input is given up."""
