"""A change as a line: for people, and as JSON for programs."""

import base64
import json
from typing import TYPE_CHECKING, Any

from headrace.client.changes import Change

if TYPE_CHECKING:
    from headrace.client import RolledBack

VALUE_CHARACTERS_MAX = 200
"""So much of a value is printed for people; JSON has all of it."""


def text_line(found: "Change | RolledBack") -> bytes:
    """Write a change for people."""
    if not isinstance(found, Change):
        kept = f"back to seqno {found.whole}" if found.whole else "back to the beginning"
        return f"{'':15} rollback     vb {found.vbucket:<4} {kept}: {found.because}\n".encode()
    when = f"{found.changed_at.astimezone():%H:%M:%S.%f}" if found.changed_at is not None else ""
    key = _shown(found.key) if found.key is not None else ""
    value = _shown(found.value, VALUE_CHARACTERS_MAX) if found.value else ""
    # What came by TAP has no seqno; the revision is what it has to tell versions apart.
    numbered = f"seqno {found.seqno:<8}" if found.seqno else f"rev {found.rev or '':<10}"
    at = f"vb {found.vbucket:<4} {numbered}"
    return f"{when:15} {found.event:12} {at} {key}  {value}".rstrip().encode() + b"\n"


def json_line(found: "Change | RolledBack") -> bytes:
    """Write everything that is known of a change, as one JSON object."""
    if not isinstance(found, Change):
        told = {
            "event": "rollback",
            "vbucket": found.vbucket,
            "vbuuid": found.log.latest.vbuuid,
            "seqno": found.whole,
            "server_seqno": found.to,
            "because": str(found.because),
            "read_vbuuid": found.asked.vbuuid,
            "read_seqno": found.asked.seqno,
        }
        return json.dumps(told).encode() + b"\n"
    fields: dict[str, Any] = found._asdict()
    if not found.seqno:  # it came by TAP
        del fields["vbuuid"], fields["seqno"]
    for name in ("key", "value"):
        given = fields.pop(name)
        if given is not None:
            fields |= _told(name, given)
    if found.changed_at is not None:
        fields["changed_at"] = found.changed_at.isoformat()
    return json.dumps({name: each for name, each in fields.items() if each is not None}).encode() + b"\n"


def _told(name: str, given: str | bytes) -> dict[str, str]:
    if isinstance(given, str):
        return {name: given}
    try:
        return {name: given.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(given).decode()}


def _shown(given: str | bytes, characters_max: int = 1000) -> str:
    text = given if isinstance(given, str) else given[: 4 * characters_max].decode(errors="backslashreplace")
    cut = text[:characters_max] + "…" if len(text) > characters_max else text
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in cut)  # it goes to terminals


__all__ = ["json_line", "text_line"]
