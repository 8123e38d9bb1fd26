"""Bytes written as text: hex, dumps, and byte pictures.

Plain hex in any spacing; the dumps of xxd, hexdump -C, od and tshark; and the byte pictures of the protocol
documents, which `explain --picture` draws, too.

Each function returns the chunks of the text: a line, a dump or a picture. Whether a chunk starts a message
or goes on with the one before it is for `messages` to say.
"""

import io
import re
from collections.abc import Iterable, Iterator

from headrace.explain.events import InputError, counted
from headrace.explain.limits import TEXT_BYTES_MAX, TEXT_LINES_MAX, TEXT_TO_BINARY, size

# Where somebody put 0x in front of a number; elsewhere "0x" would be two characters of which one is wrong.
_PREFIX = re.compile(r"(?<![0-9a-fA-F])0[xX]")
_FILLER = re.compile(r"[\s:,;_]+")
_NOT_HEX = re.compile(r"[^0-9a-fA-F\s:,;_]")
_DUMP_ROW = re.compile(r"\s*([0-9a-fA-F]{4,16})(:| {1,3}|$)(.*)$")
_DUMP_TEXT = re.compile(r"\s{2,}(\|.*\||>.*<)\s*$")
_PICTURE_ROW = re.compile(r"\s*(\d+)\s?\|((?:\s*(?:0x)?[0-9a-fA-F]{2}(?:\s*\('.'\))?\s*\|)+)\s*$")
_PICTURE_CELL = re.compile(r"\s*(?:0x)?([0-9a-fA-F]{2})(?:\s*\('.'\))?\s*\|")

# Nobody draws longer rows, and the patterns above take their time over long ones.
_ROW_CHARS_MAX = 400

Chunk = tuple[str, bytes]
"""The words for where some bytes stand, and the bytes."""


def parse_hex(text: str) -> bytes:
    """Read one stretch of hex; raise InputError with the place of the first character that is none."""
    bare = _PREFIX.sub("  ", text)  # two for two: places stay what they were
    bad = _NOT_HEX.search(bare)
    if bad:
        raise InputError(f"{bad.group()!a} at character {bad.start() + 1} is no hex digit")
    digits = _FILLER.sub("", bare)
    if len(digits) % 2:
        verb = "is" if len(digits) == 1 else "are"
        raise InputError(f"{counted(len(digits), 'hex digit')} {verb} half a byte too many or too few")
    return bytes.fromhex(digits)


def read_text(text: str) -> list[Chunk]:
    """Find out how the bytes are written, and read them."""
    filled: list[tuple[int, str]] = []
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if number > TEXT_LINES_MAX:
            raise InputError(
                f"there are more than {TEXT_LINES_MAX} lines, the most for hex; "
                f"turn it into bytes first: {TEXT_TO_BINARY}"
            )
        if line.strip() and not line.lstrip().startswith("#"):
            filled.append((number, line.rstrip()))
    if any(_picture_row(line) for _, line in filled):
        return list(_read_pictures(filled))
    rows = _dump_rows(filled)
    if rows is not None:
        return list(_join_dumps(rows))
    return [(f"line {number}", _hex_line(number, line)) for number, line in filled]


def _hex_line(number: int, line: str) -> bytes:
    try:
        return parse_hex(line.partition("#")[0])
    except InputError as error:
        raise InputError(f"line {number}: {error}") from None


def _picture_row(line: str) -> re.Match[str] | None:
    return _PICTURE_ROW.match(line) if len(line) <= _ROW_CHARS_MAX else None


def _read_pictures(lines: Iterable[tuple[int, str]]) -> Iterator[Chunk]:
    """Read the rows of byte pictures; rulers and legends between them are passed over."""
    start, found = 0, bytearray()
    for number, line in lines:
        row = _picture_row(line)
        if row is None:
            continue
        offset = int(row[1])
        if offset == 0 and found:
            yield f"the picture at line {start}", bytes(found)
            found.clear()
        if offset != len(found):
            raise InputError(f"line {number}: this row of the picture says byte {offset}, it is byte {len(found)}")
        start = start if found else number
        found += bytes.fromhex("".join(_PICTURE_CELL.findall(row[2])))
    if found:
        yield f"the picture at line {start}", bytes(found)


Row = tuple[int, int, bytes | None]
"""Line, offset, and bytes: none for the `*` that stands for rows like the one before."""


def _dump_rows(lines: list[tuple[int, str]]) -> list[Row] | None:
    """Read every line as a row of a dump, in the base in which its offsets add up; None if it is no dump."""
    parsed = [(number, _dump_row(line)) for number, line in lines]
    for base in (16, 8, 10):
        rows = _rows_in_base(parsed, base)
        if not isinstance(rows, int):
            return rows
    first = parsed[0][1] if parsed else None
    if first is not None and first[1] and not first[0].strip("0"):  # no message begins with two zero bytes
        number = _rows_in_base(parsed, 16)
        raise InputError(f"line {number}: this is no row of the dump that began, or rows before it are missing")
    return None


def _dump_row(line: str) -> tuple[str, bytes | None] | None:
    """Take one row apart: its offset as written, and its bytes without the column of characters."""
    if line.strip() == "*":
        return "", None
    row = _DUMP_ROW.match(line) if len(line) <= _ROW_CHARS_MAX else None
    if row is None:
        return None
    offset, mark, rest = row[1], row[2], row[3].strip()
    if mark == ":":  # xxd parts the characters by two spaces, and nothing else
        rest = rest.split("  ", 1)[0]
    else:  # hexdump -C fences them; tshark parts them by three spaces, and the two halves of a row by two
        rest = re.split(r"\s{3,}", _DUMP_TEXT.sub("", "  " + rest).strip(), maxsplit=1)[0]
    try:
        return offset, bytes.fromhex(rest)
    except ValueError:
        return None


def _rows_in_base(parsed: list[tuple[int, tuple[str, bytes | None] | None]], base: int) -> list[Row] | int | None:
    """Read offsets in one base: the rows; or the line that fits no dump; or None for a dump of nothing."""
    rows: list[Row] = []
    expected, repeating = 0, False
    for number, row in parsed:
        if row is None:
            return number
        offset_text, data = row
        if data is None:
            if not rows or repeating:
                return number
            rows.append((number, expected, None))
            repeating = True
            continue
        try:
            offset = int(offset_text, base)
        except ValueError:
            return number
        if offset not in (0, expected) and not (repeating and offset > expected):
            return number
        rows.append((number, offset, data))
        expected, repeating = offset + len(data), False
    # A lone line of plain hex that starts with zeros must not pass for a dump without bytes.
    return rows if any(data for _, _, data in rows) else None


def _join_dumps(rows: list[Row]) -> Iterator[Chunk]:
    """Put rows together; an offset of zero begins another dump."""
    start, found, last, repeating = 0, bytearray(), b"", False
    for number, offset, data in rows:
        if data is None:
            repeating = True
            continue
        if offset == 0 and found:
            yield f"the dump at line {start}", bytes(found)
            found.clear()
        if repeating and last:
            lacking = offset - len(found)
            if lacking > TEXT_BYTES_MAX:
                raise InputError(
                    f"line {number}: the `*` before it stands for {lacking} bytes, "
                    f"a dump may have {size(TEXT_BYTES_MAX)}; turn it into bytes first: xxd -r"
                )
            found += (last * (lacking // len(last) + 1))[:lacking]
        start = start if found else number
        found += data
        last, repeating = data, False
    if found:
        yield f"the dump at line {start}", bytes(found)
