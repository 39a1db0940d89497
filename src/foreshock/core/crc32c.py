"""CRC-32C of long texts in NumPy: TensorBoard's own takes each byte in Python."""

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL: Final = 0x82F63B78
_CHUNK: Final = 256
_MASK: Final = 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of some bytes.

    A checksum is linear: that of a chunk is the sum of what each byte adds by its distance from
    the end, looked up for all chunks at once.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'

    Reference: RFC 3720, appendix B.4 (test vectors).
    """
    if len(data) < 4:
        return _short(data)
    padding = -len(data) % _CHUNK
    padded = np.zeros(padding + len(data), np.uint8)  # what comes before a first 1 adds nothing
    padded[padding:] = np.frombuffer(data, np.uint8)
    padded[padding : padding + 4] ^= 0xFF
    tables = _tables()
    places = np.arange(_CHUNK - 1, -1, -1)
    added = tables[places, padded.reshape(-1, _CHUNK)]
    fourth, third, second, first = (tables[_CHUNK - back].tolist() for back in (4, 3, 2, 1))
    state = 0
    for own in np.bitwise_xor.reduce(added, axis=1).tolist():
        state = (
            own
            ^ first[state & 0xFF]
            ^ second[state >> 8 & 0xFF]
            ^ third[state >> 16 & 0xFF]
            ^ fourth[state >> 24]
        )
    return state ^ _MASK


def masked(crc: int) -> int:
    """A checksum as it stands beside what it is of, in TensorFlow's record files."""
    return (((crc >> 15 | crc << 17) & _MASK) + 0xA282EAD8) & _MASK


def _short(data: bytes) -> int:
    table = _tables()[0].tolist()
    state = _MASK
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return state ^ _MASK


@cache
def _tables() -> NDArray[np.uint32]:
    """`[256, 256]`: what a byte adds to a checksum by how many bytes follow it."""
    tables = np.zeros((_CHUNK, 256), np.uint32)
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ np.uint32(_POLYNOMIAL), first >> 1)
    tables[0] = first
    for row in range(1, _CHUNK):
        tables[row] = tables[row - 1] >> 8 ^ first[tables[row - 1] & 0xFF]
    return tables
