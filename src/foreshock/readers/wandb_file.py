"""Offline files of Weights & Biases, alone or in the directory of their run."""

import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Any, ClassVar

from foreshock.core.errors import LogError, MissingExtra
from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import is_noise
from foreshock.core.log_names import step_place
from foreshock.core.reader import Reader, Sample, Source

Row = tuple[int, dict[str, float]]
"""W&B's own step, and the values by key."""

_MAGIC = b":W&B"
_FILE = re.compile(r"\Arun-[^/]*\.wandb\Z")
_BLOCK_BYTES = 32 << 10
_MAX_RECORD_BYTES = 16 << 20
_FILE_HEADER_BYTES = 7
_RECORD = struct.Struct("<IHB")
_LOST, _FULL, _FIRST, _MIDDLE, _LAST = range(5)
_CRC_OF_TYPE = [zlib.crc32(bytes([kind])) for kind in range(5)]
_ROWS_TO_LEARN = 256
_FACTS = (
    "fp16", "bf16", "precision", "torch_dtype", "dtype", "mixed_precision", "optim", "optimizer",
    "learning_rate", "lr", "deepspeed", "transformers_version", "seed",
)  # fmt: skip
_PACKAGES = re.compile(
    rb"(?m)^(torch|transformers|deepspeed|accelerate|lightning|pytorch-lightning|mindspore|jax"
    rb"|tensorflow|flash-attn|transformer-engine)==(\S{1,40})"
)


class WandbFile(Reader):
    """`run-abc123.wandb`: the transaction log that W&B writes, in the framing of LevelDB's log.

    W&B's own step counts calls of `log`. Where nearly every row names an optimizer step
    (`train/global_step`, …), that is the step. The summary is no record and left out.
    """

    name: ClassVar[str] = "wandb_file"
    title: ClassVar[str] = "Weights & Biases offline run"

    def recognises(self, sample: Sample) -> float:
        if not sample.is_dir:
            return 1.0 if sample.head.startswith(_MAGIC) else 0.0
        return 0.95 if any(_FILE.match(name) for name in sample.children) else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        if not source.is_dir:
            _give(_history(source, log), log)
            return
        names = source.children()
        files = [name for name in names if _FILE.match(name)]
        if not files:
            raise LogError(f"{source.name} holds no file run-*.wandb")
        if "files/requirements.txt" in names:
            listed = source.child("files/requirements.txt")
            for package, version in _PACKAGES.findall(next(iter(listed.blocks()), b"")):
                log.facts[package.decode()] = version.decode("utf-8", "replace")
        self.read_each(source, files, log)


def _give(rows: Iterator[Row], log: LogBuilder) -> None:
    """Give rows to the log, under the step that most of them name."""
    first = list(islice(rows, _ROWS_TO_LEARN))
    label = _step_label([values for _, values in first], log)
    for part in (first, rows):
        for own_step, values in part:
            step = values.get(label, own_step)
            pairs = [
                (key, value)
                for key, value in values.items()
                if key != label and (key in log.wanted or not is_noise(key))
            ]
            if pairs:
                log.row(int(step) if abs(step) < 1 << 60 else None, pairs)


def _step_label(rows: list[dict[str, float]], log: LogBuilder) -> str:
    """The key that counts optimizer steps; empty if there is none but W&B's own."""
    for label, signal in log.wanted.items():
        if signal == "step":
            return label
    counts = Counter(key for values in rows for key in values if step_place(key) < 1000)
    for key in sorted(counts, key=step_place):
        steps = [values[key] for values in rows if key in values]
        rises = all(one <= two for one, two in pairwise(steps))
        if counts[key] >= 0.9 * len(rows) and rises and steps[-1] > steps[0]:
            return key
    return ""


def _history(source: Source, log: LogBuilder) -> Iterator[Row]:
    record_type, error_type = _protobuf()
    for data in _records(source, log):
        log.num_lines += 1
        try:
            record = record_type.FromString(data)
        except error_type:
            log.note("records that are damaged were skipped")
            continue
        kind = record.WhichOneof("record_type")
        if kind == "history":
            if (row := _row(record.history)) is not None:
                yield row
        elif kind in ("config", "run"):
            _take_facts(record.config if kind == "config" else record.run.config, log)
            if kind == "run" and record.run.resumed:
                log.event(EventKind.RESUMED, text="W&B: the run was resumed")
        elif kind == "exit" and record.exit.exit_code:
            log.event(EventKind.STOPPED, text=f"W&B: exit code {record.exit.exit_code}")


def _row(history: Any) -> Row | None:
    step = history.step.num
    values: dict[str, float] = {}
    for item in history.item:
        key = item.key or ".".join(item.nested_key)
        if key == "_step":
            own = _number(item)
            step = int(own) if own is not None and abs(own) < 1 << 60 else step
        elif key[:1] != "_" and (value := _number(item)) is not None:
            values[key] = value
    return (step, values) if values else None


def _number(item: Any) -> float | None:
    text = item.value_json
    if not text and "value" in item.DESCRIPTOR.oneofs_by_name:  # W&B from 0.31
        kind = item.WhichOneof("value")
        if kind in ("integer", "number"):
            return float(getattr(item, kind))
        text = item.text if kind == "text" else item.json if kind == "json" else ""
        if kind == "text" and text not in ("NaN", "Infinity", "-Infinity"):
            return None
    if not text or text[0] not in '0123456789-NI"':
        return None
    if text[0] == '"':
        text = text[1:-1]
        if text not in ("NaN", "Infinity", "-Infinity"):
            return None
    try:
        return float(text)
    except ValueError:
        return None


def _take_facts(config: Any, log: LogBuilder) -> None:
    for item in config.update:
        if item.key in _FACTS and item.value_json != "null":
            log.facts[item.key] = item.value_json[:80].strip('"')


def _records(source: Source, log: LogBuilder) -> Iterator[bytes]:
    """The records, put together from their parts; damaged ones are skipped."""
    parts: list[bytes] = []
    size = 0
    for kind, data in _parts(source, log):
        if kind in (_LOST, _FULL, _FIRST):
            parts, size = [], 0
        elif not parts:
            continue  # its beginning was damaged or too long
        if kind == _LOST:
            continue
        parts.append(data)
        size += len(data)
        if size > _MAX_RECORD_BYTES:
            parts = []
            log.note(f"a record of more than {_MAX_RECORD_BYTES >> 20} MiB was skipped")
        elif kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []


def _parts(source: Source, log: LogBuilder) -> Iterator[tuple[int, bytes]]:
    place = _FILE_HEADER_BYTES
    for block, is_last in _cut(source.blocks()):
        while place + _RECORD.size <= len(block):
            checksum, length, kind = _RECORD.unpack_from(block, place)
            if kind == length == checksum == 0:
                break  # what is left of a block too small for a record
            start = place + _RECORD.size
            data = block[start : start + length]
            if len(data) < length and is_last:
                log.note("the last record is cut off: its job was killed, or is still running")
                return
            if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or (
                zlib.crc32(data, _CRC_OF_TYPE[kind]) != checksum
            ):
                log.note("records that are damaged were skipped")
                yield _LOST, b""
                break
            yield kind, data
            place = start + length
        place = 0


def _cut(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """A file's bytes in the blocks of its framing, and whether each is the last."""
    rest = b""
    for block in blocks:
        rest += block
        places = range(0, len(rest) - _BLOCK_BYTES, _BLOCK_BYTES)
        for place in places:
            yield rest[place : place + _BLOCK_BYTES], False
        rest = rest[len(places) * _BLOCK_BYTES :]
    if rest:
        yield rest, True


def _protobuf() -> tuple[Any, type[Exception]]:
    try:
        from google.protobuf.message import DecodeError  # noqa: PLC0415
        from wandb.proto import wandb_internal_pb2  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra(
            ".wandb files need W&B's package: pip install 'foreshock[logs]'"
        ) from error
    return getattr(wandb_internal_pb2, "Record"), DecodeError  # noqa: B009 - generated
