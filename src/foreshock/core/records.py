"""The bytes of the run directory: how decisions, readings and provenance are written down.

Pure encoding and decoding, no I/O. Three rules hold for all of it. Every record carries
a CRC-32, and no record consists of zeros only, so that a block which a power loss left
blank is never taken for one. Decoding bytes of any origin ends in a result or in a
JournalError of one sentence, and needs memory in proportion to the bytes given, whatever
they claim. All binary numbers are little-endian.
"""

import io
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard, cast, final

import numpy as np
import numpy.typing as npt

from foreshock.core.errors import JournalError
from foreshock.core.reading import from_json_number, json_number

FORMAT: Final = 2
"""The number of the layout described here; it rises when an older reader would fail."""

MAX_POSITIONS: Final = 1 << 20
"""Samples in one step. Our choice: far above any batch, and 40 MB when a forged file claims it."""

_READINGS_MAGIC: Final = b"FSHKREAD"
_PROVENANCE_MAGIC: Final = b"FSHKDATA"
_HEADER: Final = struct.Struct("<8sII")  # magic, format, length of the JSON that follows
_READING: Final = struct.Struct("<qi")  # step, flags; then float32[S]
_PROVENANCE: Final = struct.Struct("<Iq")  # number of runs, step; then the runs
_CRC: Final = struct.Struct("<I")
_RUN: Final = np.dtype([("start", "<i8"), ("length", "<u4")])


# Decisions: one line of JSON each.


@final
@dataclass(frozen=True, kw_only=True)
class Lines:
    """What a decisions file holds: its records, and how many of its bytes are sound."""

    records: list[dict[str, Any]]
    valid_size: int
    torn_bytes: int


def encode_line(record: Mapping[str, Any]) -> bytes:
    r"""One line of strict JSON that ends in its own checksum, `"crc"`.

    NaN and ±Inf become the strings that `number` reads back; NumPy scalars and arrays
    become numbers and lists. The CRC-32 covers the object's text without the "crc" member.
    Raises JournalError, naming the field, for what JSON cannot hold.

    >>> encode_line({"kind": "alarm", "value": float("inf")})
    b'{"kind":"alarm","value":"Infinity","crc":"39f9a4ca"}\n'
    """
    if "crc" in record:
        raise JournalError("the field 'crc' is reserved for the record's checksum.")
    try:
        body = json.dumps(_plain(record, "record"), separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"a record cannot be written as JSON: {error}.") from error
    comma = "," if record else ""
    return f'{body[:-1]}{comma}"crc":"{zlib.crc32(body.encode()):08x}"}}\n'.encode()


def decode_line(line: bytes) -> dict[str, Any]:
    """The record of one line, without its checksum. Raises JournalError if it is damaged.

    Non-finite numbers stay the strings they are in the file: see `number`.
    """
    body, mark, rest = line.rpartition(b'"crc":"')
    if not mark or len(rest) != 11 or rest[8:] != b'"}\n':
        raise JournalError("it does not end in a checksum.")
    body = body.removesuffix(b",") + b"}"
    if rest[:8] != b"%08x" % zlib.crc32(body):
        raise JournalError("its checksum does not match.")
    try:
        record = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"it is not JSON: {error}.") from error
    if not isinstance(record, dict):
        raise JournalError("it is not a JSON object.")
    return cast("dict[str, Any]", record)


def decode_lines(data: bytes, name: str) -> Lines:
    """Every record of a decisions file called `name`.

    A crash can only damage what was not yet synced, and every record says how many bytes
    directly before it were not ("unsynced_bytes", absent when none). So a damaged line
    that a whole record vouches for is a JournalError naming file and line, and any other
    one is where the torn end begins, which is dropped and counted.
    """
    records: list[dict[str, Any]] = []
    torn: tuple[int, int, int, JournalError] | None = None
    begin = 0
    for index, line in enumerate(io.BytesIO(data)):
        try:
            record = decode_line(line)
        except JournalError as error:
            torn = torn or (index + 1, begin, len(records), error)
        else:
            unsynced = record.pop("unsynced_bytes", 0)
            if torn and not (isinstance(unsynced, int) and torn[1] >= begin - unsynced):
                raise JournalError(
                    f"{name}, line {torn[0]} is damaged: {torn[3]} It was safe on disk, so this "
                    f"is no crash: restore the file from a copy, or use a new run directory."
                )
            records.append(record)
        begin += len(line)
    if torn is None:
        return Lines(records=records, valid_size=begin, torn_bytes=0)
    _, valid_size, num_records, _ = torn
    return Lines(
        records=records[:num_records], valid_size=valid_size, torn_bytes=begin - valid_size
    )


def number(value: object) -> float:
    """The float that a field holds, the strings "NaN", "Infinity" and "-Infinity" included.

    Raises JournalError for anything else.
    """
    try:
        return from_json_number(value)
    except ValueError as error:
        raise JournalError(f"{value!r:.80} is not a number.") from error


def _plain(value: object, field: str) -> object:
    """The same value in the types that JSON has."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = cast(object, value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return json_number(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        plain: dict[str, object] = {}
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise JournalError(f"{field} has the key {key!r}: JSON keys are strings.")
            plain[key] = _plain(item, key)
        return plain
    if isinstance(value, (list, tuple)):
        return [_plain(item, field) for item in cast("Sequence[object]", value)]
    raise JournalError(
        f"{field} is of type {type(value).__name__}: give a string, number, boolean, None, "
        f"or a list or mapping of these."
    )


def _refuse_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not strict JSON")


# Readings: a header, then records of one size.


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ReadingBlock:
    """Readings of one attempt, `values[t, s]` being `series[s]` at `steps[t]`.

    A value that is `ABSENT` was not measured at that step. `torn_bytes` counts what follows
    the first damaged record and was not read.
    """

    attempt: int
    series: tuple[str, ...]
    steps: npt.NDArray[np.int64]
    flags: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    torn_bytes: int


COLUMNS: Final = ("step", "flags")
"""Names that no series can have: the columns before the series in a table of readings."""


def encode_readings_header(attempt: int, series: Sequence[str], segment: int = 1) -> bytes:
    """The start of one segment of an attempt's readings; segments are numbered from 1.

    Raises JournalError unless the names are there, distinct, and none of `COLUMNS`.
    """
    if not series or len(set(series)) != len(series):
        raise JournalError(f"series {list(series)!r:.200}: give at least one name, each once.")
    if not set(COLUMNS).isdisjoint(series):
        raise JournalError(f"no series can be called {' or '.join(COLUMNS)}: name it signal/scope.")
    fields = {"attempt": attempt, "segment": segment, "series": list(series)}
    return _encode_header(_READINGS_MAGIC, fields)


def encode_reading(step: int, flags: int, values: npt.NDArray[np.float32]) -> bytes:
    """One record: step int64, flags int32, values float32[S], CRC-32."""
    body = _READING.pack(step, flags) + values.astype("<f4", copy=False).tobytes()
    return body + _CRC.pack(zlib.crc32(body))


def reading_size(num_series: int) -> int:
    """Bytes of one record."""
    return _READING.size + 4 * num_series + _CRC.size


def decode_readings(data: bytes, name: str, segment: int | None = None) -> ReadingBlock:
    """The readings in a segment called `name`, up to the first record that is not whole.

    Raises JournalError if the header is not that of a readings file, or with `segment` not
    that of this one.
    """
    fields, start = _decode_header(data, _READINGS_MAGIC, name)
    series = fields.get("series")
    if not _is_names(series):
        raise JournalError(f"{name}: its header does not name its series.")
    if segment is not None and fields.get("segment") != segment:
        raise JournalError(f"{name}: its header is that of another segment.")
    size = reading_size(len(series))
    body_size = size - _CRC.size
    num_whole = (len(data) - start) // size
    view = memoryview(data)
    count = 0
    for at in range(start, start + num_whole * size, size):
        if _CRC.unpack_from(data, at + body_size)[0] != zlib.crc32(view[at : at + body_size]):
            break
        count += 1
    raw = np.frombuffer(data, np.uint8, count * size, start).reshape(count, size)
    return ReadingBlock(
        attempt=_attempt(fields, name),
        series=tuple(series),
        steps=raw[:, :8].copy().view("<i8").reshape(count),
        flags=raw[:, 8:12].copy().view("<i4").reshape(count),
        values=raw[:, 12:body_size].copy().view("<f4"),
        torn_bytes=len(data) - start - count * size,
    )


# Provenance: a header, then records as long as they need to be.


@final
class Provenance(Mapping[int, list[int]]):
    """Which stream positions each step of one attempt consumed, in the order they came.

    Kept as the runs in the file and spelled out when a step is asked for. `torn_bytes`
    counts what follows the first damaged record and was not read.
    """

    def __init__(self, attempt: int, runs: Mapping[int, list[bytes]], torn_bytes: int) -> None:
        self.attempt = attempt
        self.torn_bytes = torn_bytes
        self._runs = runs

    def __getitem__(self, step: int) -> list[int]:
        runs = np.frombuffer(b"".join(self._runs[step]), _RUN)
        return [
            position
            for start, length in zip(runs["start"].tolist(), runs["length"].tolist(), strict=True)
            for position in range(start, start + length)
        ]

    def __iter__(self) -> Iterator[int]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)


def encode_provenance_header(attempt: int) -> bytes:
    """The start of a provenance file."""
    return _encode_header(_PROVENANCE_MAGIC, {"attempt": attempt})


def encode_provenance(step: int, positions: Sequence[int]) -> bytes:
    """One record: number of runs uint32, step int64, runs (start int64, length uint32), CRC-32.

    Raises JournalError for a negative position, or more than `MAX_POSITIONS` of them.
    """
    where = np.asarray(positions, np.int64)
    if where.size > MAX_POSITIONS or (where.size and where.min() < 0):
        raise JournalError(
            f"step {step} reports {where.size} positions, the least {where.min()}: at most "
            f"{MAX_POSITIONS} can be recorded, none of them negative."
        )
    begins = np.flatnonzero(np.diff(where, prepend=-2) != 1)
    runs = np.empty(begins.size, _RUN)
    runs["start"] = where[begins]
    runs["length"] = np.diff(begins, append=where.size)
    body = _PROVENANCE.pack(runs.size, step) + runs.tobytes()
    return body + _CRC.pack(zlib.crc32(body))


def decode_provenance(data: bytes, name: str) -> Provenance:
    """The provenance in a file called `name`, up to the first record that is not whole.

    Several records of one step add up. Raises JournalError if the header is not that of a
    provenance file, or a step claims more than `MAX_POSITIONS`.
    """
    fields, at = _decode_header(data, _PROVENANCE_MAGIC, name)
    runs: dict[int, list[bytes]] = {}
    totals: dict[int, int] = {}
    while at + _PROVENANCE.size + _CRC.size <= len(data):
        num_runs, step = cast("tuple[int, int]", _PROVENANCE.unpack_from(data, at))
        begin = at + _PROVENANCE.size
        end = begin + num_runs * _RUN.itemsize
        if end + _CRC.size > len(data):
            break
        if _CRC.unpack_from(data, end)[0] != zlib.crc32(memoryview(data)[at:end]):
            break
        lengths = np.frombuffer(data, _RUN, num_runs, begin)["length"]
        totals[step] = totals.get(step, 0) + int(lengths.sum(dtype=np.uint64))
        if totals[step] > MAX_POSITIONS or (num_runs and lengths.min() == 0):
            raise JournalError(f"{name}: step {step} claims impossible runs; the file is forged.")
        runs.setdefault(step, []).append(data[begin:end])
        at = end + _CRC.size
    return Provenance(_attempt(fields, name), runs, len(data) - at)


def _encode_header(magic: bytes, fields: Mapping[str, object]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    header = _HEADER.pack(magic, FORMAT, len(text)) + text
    return header + _CRC.pack(zlib.crc32(header))


def _decode_header(data: bytes, magic: bytes, name: str) -> tuple[dict[str, Any], int]:
    """The header's fields, and where the records begin."""
    if len(data) < _HEADER.size or data[:8] != magic:
        raise JournalError(f"{name} is not a Foreshock file of this kind.")
    _, version, length = cast("tuple[bytes, int, int]", _HEADER.unpack_from(data))
    if version != FORMAT:
        raise JournalError(
            f"{name} has format {version} and this Foreshock reads format {FORMAT}: "
            f"use the version that wrote it."
        )
    end = _HEADER.size + length
    if end + _CRC.size > len(data) or _CRC.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
        raise JournalError(f"{name}: its header is damaged.")
    try:
        fields = json.loads(data[_HEADER.size : end])
    except (ValueError, RecursionError) as error:
        raise JournalError(f"{name}: its header is not JSON.") from error
    if not isinstance(fields, dict):
        raise JournalError(f"{name}: its header is not a JSON object.")
    return cast("dict[str, Any]", fields), end + _CRC.size


def _attempt(fields: Mapping[str, Any], name: str) -> int:
    attempt = fields.get("attempt")
    if type(attempt) is not int:
        raise JournalError(f"{name}: its header does not name its attempt.")
    return attempt


def _is_names(series: object) -> TypeGuard[list[str]]:
    return (
        isinstance(series, list)
        and bool(cast("list[object]", series))
        and all(isinstance(name, str) for name in cast("list[object]", series))
    )
