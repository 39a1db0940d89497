"""The framing of TensorFlow's record files: length, its checksum, data, their checksum."""

import re
import struct
from collections.abc import Callable, Iterable, Iterator

_MAX_RECORD_BYTES = 16 << 20
_MAX_KNOWN = 4096
_MAX_TRIES = 100_000
_HEADER = struct.Struct("<QI")


def records(blocks: Iterable[bytes], note: Callable[[str], None]) -> Iterator[bytes]:
    """The data of a file's records; what is damaged is skipped.

    The checksum of a length is verified, that of the data, which costs more than everything
    else, is not.
    """
    lengths: dict[bytes, int] = {}
    rest = b""
    skip = 0
    search = _Search()
    for block in blocks:
        if skip >= len(block):
            skip -= len(block)
            continue
        rest = rest + block[skip:] if rest else block[skip:]
        skip = place = 0
        size = len(rest)
        while place + 12 <= size:
            header = rest[place : place + 12]
            length = lengths.get(header)
            if length is None:
                length = length_of(header)
                if length is None:
                    note("damaged records were skipped")
                    place = search.next_record(rest, place + 1)
                    if place < 0:
                        note("too much of the file is damaged: the rest was not read")
                        return
                    continue
                if len(lengths) < _MAX_KNOWN:
                    lengths[header] = length
            end = place + 12 + length
            if end + 4 > size:
                if length > _MAX_RECORD_BYTES:  # an image or a graph: no scalar is so large
                    skip, place = end + 4 - size, size
                break
            yield rest[place + 12 : end]
            place = end + 4
        rest = rest[place:]
    if rest or skip:
        note("the last record is cut off: the file was still being written, or its job killed")


class _Search:
    """Looks for the next record behind a damaged one: a length has zeros in its upper bytes,
    something in the three below them, and a checksum of its own."""

    _pattern = re.compile(rb"[^\0](?=.{0,2}\0{5})", re.S)

    def __init__(self) -> None:
        self._left = _MAX_TRIES

    def next_record(self, data: bytes, place: int) -> int:
        """Where it begins, or where to look on; -1 once too many places were tried."""
        for found in self._pattern.finditer(data, place):
            for start in range(max(found.start() - 2, place), found.end()):
                if length_of(data[start : start + 12]) is not None:
                    return start
            self._left -= 1
            if self._left < 0:
                return -1
        return max(len(data) - 11, place)


def length_of(header: bytes) -> int | None:
    """The length that a record's first twelve bytes give; None if their checksum is wrong."""
    if len(header) < 12:
        return None
    length, checksum = _HEADER.unpack(header)
    crc = 0xFFFFFFFF
    for byte in header[:8]:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return length if masked == checksum and length < 1 << 40 else None


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]  # CRC-32C
