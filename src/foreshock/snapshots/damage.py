"""What tells files that are not as they were written."""

import hashlib
from collections.abc import Iterable
from typing import Final

from foreshock.core.errors import SnapshotError

DAMAGE: Final = (
    AttributeError,
    ArithmeticError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What reading a state that is not as it should be may raise; RecursionError is among them."""


class DamagedError(SnapshotError):
    """What a snapshot's files hold is not what was written: reading it again does not help."""


def blake2b(pieces: Iterable[bytes | bytearray | memoryview]) -> str:
    """BLAKE2b of the pieces one after the other, 128 bits in hexadecimal."""
    sink = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        sink.update(piece)
    return sink.hexdigest()
