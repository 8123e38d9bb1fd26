"""Where a query begins and a batch read ends: earliest, latest, or positions that the user gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.client import OptionError
from headrace.errors import LocalProtocolError
from headrace.history import Position
from headrace.ids import VBucketId
from headrace.protocol.subscription import branch_of
from headrace.spark.offsets import MARK, Offset, OffsetError, Place, VBucketOffset
from headrace.spark.options import EARLIEST, LATEST, positions_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.history import FailoverLog
    from headrace.spark.options import Options
    from headrace.spark.watching import Watch

_FORM = "a seqno, earliest, latest, or an object with vbuuid and seqno"


def starting_offset(options: Options, watch: Watch) -> Offset:
    """The offset that `startingOffsets` stands for; the servers are asked, so that a wrong address is told at once."""
    return resolve("startingOffsets", options.starting_offsets, options.bucket, watch)


def resolve(name: str, given: str | Mapping[str, Any], bucket: str, watch: Watch) -> Offset:
    """The offset that the value of an option stands for."""
    sighted = watch.look(all_of_them=True, patient=False)
    if given == EARLIEST:
        return Offset(bucket)
    if isinstance(given, dict) and MARK in given:
        try:
            return Offset.from_json(given, bucket=bucket)
        except OffsetError as error:
            raise OptionError(f"option {name}: {error}") from None
    wanted = dict.fromkeys(map(str, sighted), LATEST) if given == LATEST else positions_of(name, given, bucket)  # type: ignore[arg-type]
    rows = {_vbucket(name, text, watch): row for text, row in wanted.items() if row != EARLIEST}
    logs = watch.logs(set(rows) & sighted.keys())
    found = {}
    for vbucket, row in rows.items():
        if vbucket in logs:
            found[int(vbucket)] = _offset(name, vbucket, row, sighted[vbucket].high, logs[vbucket])
    return Offset(bucket, found)


def _vbucket(name: str, text: str, watch: Watch) -> VBucketId:
    if not (text.isascii() and text.isdigit() and int(text) < watch.scout.vbuckets):
        raise OptionError(f"option {name}: {text!r} is no vbucket; the bucket has 0 to {watch.scout.vbuckets - 1}")
    return VBucketId(int(text))


def _offset(name: str, vbucket: int, row: object, high: int, log: FailoverLog) -> VBucketOffset:
    if row == LATEST:
        row = high
    if type(row) is int and row >= 0:
        branch = branch_of(log, row)
        return VBucketOffset(branch, row, log.latest.vbuuid, (Place(row, row),) if row else ())
    try:
        if isinstance(row, dict):
            seqno = row.get("seqno", 0)
            at = Position.from_dict({"snapshot_start": seqno, "snapshot_end": seqno, **row})
            # What was read up to the seqno was read before the vbucket had gone past the end of the snapshot.
            places = (Place(at.seqno, at.snapshot.end),) if at.seqno else ()
            return VBucketOffset(at.vbuuid, at.seqno, at.vbuuid, places)
    except LocalProtocolError as error:
        raise OptionError(f"option {name}, vbucket {vbucket}: {error}") from None
    raise OptionError(f"option {name}, vbucket {vbucket}: {row!r} is not {_FORM}")


__all__ = ["resolve", "starting_offset"]
