"""CRC-32C against the vectors of RFC 3720 and a slow loop over bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.crc32c import crc32c, masked


def slow(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
    ],
)
def test_the_vectors_of_the_standard(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum


@given(st.binary(max_size=2000))
def test_any_bytes(data: bytes) -> None:
    assert crc32c(data) == slow(data)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 255, 256, 257, 511, 512, 513, 4096])
def test_every_length_around_a_chunk(size: int) -> None:
    data = bytes(7 * at % 251 for at in range(size))
    assert crc32c(data) == slow(data)


def test_the_mask_is_that_of_record_files() -> None:
    reference = pytest.importorskip("tensorboard.compat.tensorflow_stub.pywrap_tensorflow")
    data = b"tensorboard" * 50
    assert masked(crc32c(data)) == reference.masked_crc32c(data)
