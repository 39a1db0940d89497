"""TensorBoard event files: one, or a directory of them."""

import re
import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain
from operator import itemgetter
from typing import Any, ClassVar

from foreshock.core.errors import LogError, MissingExtra
from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import is_noise
from foreshock.core.log_names import signal_of
from foreshock.core.reader import Reader, Sample, Source
from foreshock.core.tfrecord import length_of, records

Row = tuple[float, int, list[tuple[str, float]]]
"""When it was written, its step, and its values."""
Scalar = tuple[bytes, int, str, float]
"""An event, its step, the label and the value; no label if it says that a session starts."""

_MAX_KNOWN = 4096
_MAX_MERGED = 64
_FILE = re.compile(r"\.tfevents\.")
_STARTED = re.compile(r"\.tfevents\.(\d+)")
_EVAL = re.compile(r"(?:\A|[^a-z])(?:eval|evaluation|val|valid|validation|test|dev)(?:[^a-z]|\Z)")
_TRAIN = re.compile(r"\A(?:train|training)\Z")
_HPARAMS = re.compile(r"\A\d{9,}\.\d+\Z")
_DOUBLE = struct.Struct("<d").unpack_from
_FLOAT = struct.Struct("<f").unpack_from
_START = 1
_TYPES = {
    1: ("<f4", "float_val"), 2: ("<f8", "double_val"), 3: ("<i4", "int_val"),
    9: ("<i8", "int64_val"), 19: ("<f2", "half_val"),
}  # fmt: skip


class TensorBoard(Reader):
    """`events.out.tfevents.1700000000.host.1234.0`: scalars `train/loss`, `train/grad_norm`, ….

    A directory may hold the files of a run that was restarted, and sub-directories: one a
    writer (`train`, `validation`, the parts of `add_scalars`) or one a run. Scalars of a
    writer that evaluates carry `eval/`. The checksum of each record's length is verified;
    that of its data, which costs more than everything else, is not.
    """

    name: ClassVar[str] = "tensorboard"
    title: ClassVar[str] = "TensorBoard event files"

    def recognises(self, sample: Sample) -> float:
        if not sample.is_dir:
            return 0.95 if length_of(sample.head[:12]) is not None else 0.0
        files = [name for name in sample.children if _FILE.search(name)]
        if any("/" not in name for name in files):
            return 0.9
        writers = {name.rpartition("/")[0] for name in files}
        if files and all(_EVAL.search(one.lower()) or _TRAIN.match(one.lower()) for one in writers):
            return 0.9
        return 0.85 if files and len(files) == len(sample.children) else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        if not source.is_dir:
            for _, step, pairs in _rows_of(source, _Tags(log.wanted), log):
                log.row(step, pairs)
            return
        runs = _runs_of([name for name in source.children() if _FILE.search(name)])
        if not runs:
            raise LogError(f"{source.name} holds no event files")
        reached: tuple[int, int] | None = None
        for writers in runs:
            reached = _read_run(source, writers, reached, log)


@dataclass
class _Writer:
    """The event files of one directory, in the order in which they were begun."""

    folder: str
    is_part: bool
    files: list[str] = field(default_factory=list[str])


def _runs_of(files: list[str]) -> list[list[_Writer]]:
    """Sorts event files into runs, and each run's into writers; runs by when they began."""
    folders = {name.rpartition("/")[0] for name in files}
    writers: dict[str, _Writer] = {}
    runs: dict[str, list[_Writer]] = {}
    for name in sorted(files, key=lambda name: (_started(name), name)):
        folder = name.rpartition("/")[0]
        parent, _, last = folder.rpartition("/")
        if _HPARAMS.match(last):
            continue
        if folder not in writers:
            lowered = last.lower()
            is_part = bool(folder) and parent in folders
            is_role = bool(_EVAL.search(lowered) or _TRAIN.match(lowered))
            writers[folder] = _Writer(folder, is_part)
            runs.setdefault(parent if is_part or is_role else folder, []).append(writers[folder])
        writers[folder].files.append(name)
    return list(runs.values())


def _started(name: str) -> int:
    found = _STARTED.search(name)
    return int(found[1][:18]) if found else 0


def _read_run(
    source: Source, writers: list[_Writer], reached: tuple[int, int] | None, log: LogBuilder
) -> tuple[int, int] | None:
    """Read one run; `reached` are the first and the last step of the one before it. Where it
    goes on from in between, it is the same run, restarted in a directory of its own."""
    streams = [_rows_of_writer(source, writer, log) for writer in writers]
    if len(streams) > _MAX_MERGED:
        rows: Iterator[Row] = chain.from_iterable(streams)
    else:
        rows = merge(*streams, key=itemgetter(0)) if len(streams) > 1 else streams[0]
    first, last = -1, -1
    for _, step, pairs in rows:
        if first < 0:
            first = max(step, 0)
            if reached and reached[0] < step <= 2 * reached[1] - reached[0]:
                first = reached[0]
            elif reached:
                log.new_run()
        last = max(last, step)
        log.row(step, pairs)
    return reached if first < 0 else (first, last)


def _rows_of_writer(source: Source, writer: _Writer, log: LogBuilder) -> Iterator[Row]:
    last = writer.folder.rpartition("/")[2]
    tags = _Tags(
        log.wanted, last if writer.is_part else "", is_eval=bool(_EVAL.search(last.lower()))
    )
    for name in writer.files:
        yield from _rows_of(source.child(name), tags, log)


def _rows_of(source: Source, tags: "_Tags", log: LogBuilder) -> Iterator[Row]:
    """The scalars of a file; those that follow each other with the same step are one row."""
    at, time, pairs = 0, 0.0, list[tuple[str, float]]()
    seen = set[str]()
    for data, step, label, value in _scalars_of(source, tags, log):
        if step != at or label in seen or not label:
            if pairs:
                yield time, at, pairs
            at, pairs = step, []
            seen.clear()
            if not label:
                log.event(EventKind.RESUMED, text=f"a session starts at step {step}")
                continue
        if not pairs:
            time = _DOUBLE(data, 1)[0] if data[:1] == b"\x09" and len(data) > 8 else 0.0
        pairs.append((label, value))
        seen.add(label)
    if pairs:
        yield time, at, pairs


def _scalars_of(source: Source, tags: "_Tags", log: LogBuilder) -> Iterator[Scalar]:
    """The scalars of a file one by one."""
    labels = tags.by_bytes
    for data in records(source.blocks(), log.note):
        log.num_lines += 1
        # Nearly all are: 9, time; 16, step (none if 0); and one tag with its value at the end.
        if data[9:10] == b"\x10" and len(data) > 10:
            step, end = data[10], 11
            if step > 127:
                step, end = _varint(data, 10)
        else:
            step, end = 0, 9
        label = labels.get(data[end:-4])
        if label is None:
            label = tags.learn(data, end)
        if label:
            yield data, step, label, _FLOAT(data, len(data) - 4)[0]
        elif label is None:
            step, pairs = tags.parse(data, log)
            for each, value in pairs:
                yield data, step, each, value


class _Tags:
    """What the tags of one writer are called.

    Args:
        wanted: tags that the user named.
        part: name of its directory, if that lies beside the files of its run.
        is_eval: whether it evaluates.
    """

    def __init__(self, wanted: Container[str], part: str = "", *, is_eval: bool = False) -> None:
        self._wanted, self._part, self._is_eval = wanted, part, is_eval
        self._labels: dict[str, str] = {}
        self.by_bytes: dict[bytes, str] = {}
        """What stands between the step and the value of an event with one scalar, to the
        label; empty if it is no signal."""

    def label(self, tag: str) -> str:
        known = self._labels.get(tag)
        if known is None:
            known = self._named(tag)
            if len(self._labels) < _MAX_KNOWN:
                self._labels[tag] = known
        return known

    def _named(self, tag: str) -> str:
        if tag in self._wanted:
            return tag
        if is_noise(tag):
            return ""
        if tag == "train/train_loss" and "train/loss" in self._labels:
            return ""  # transformers: the average of the run, once it has ended
        head = re.sub(r"[/ ]", "_", tag) + "_"
        if self._part.startswith(head):
            return f"{tag}_{self._part[len(head) :]}"  # torch's add_scalars
        if self._is_eval and not signal_of(tag)[0].startswith("eval_"):
            return f"eval/{tag}"
        return tag

    def learn(self, data: bytes, end: int) -> str | None:
        """The label of an event that consists of one scalar from `end` on, else None."""
        if data[:1] != b"\x09" or (tag := _only_tag(data, end)) is None:
            return None
        label = self.label(tag)
        if len(self.by_bytes) < _MAX_KNOWN:
            self.by_bytes[data[end:-4]] = label
        return label

    def parse(self, data: bytes, log: LogBuilder) -> tuple[int, list[tuple[str, float]]]:
        """The step and the scalars of any event; one without label if a session starts."""
        event_pb2, error_type = _protobuf()
        try:
            event = event_pb2.Event.FromString(data)
        except error_type:
            log.note("records that are damaged were skipped")
            return -1, []
        starts = event.session_log.status == _START and event.step > 0
        pairs = [("", 0.0)] if starts else []
        for value in event.summary.value:
            number = _value(value)
            if number is not None and (label := self.label(value.tag)):
                pairs.append((label, number))
        return event.step, pairs


def _value(value: Any) -> float | None:
    """The number of a summary's value, if it is one."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    if kind != "tensor" or value.tensor.dtype not in _TYPES:
        return None
    tensor = value.tensor
    if any(dim.size != 1 for dim in tensor.tensor_shape.dim):
        return None
    kind, name = _TYPES[tensor.dtype]
    listed = getattr(tensor, name)
    content = tensor.tensor_content
    if not content and len(listed) == 1:
        if name != "half_val":
            return float(listed[0])
        content = struct.pack("<H", listed[0] & 0xFFFF)
    code = {"<f4": "<f", "<f8": "<d", "<i4": "<i", "<i8": "<q", "<f2": "<e"}[kind]
    return float(struct.unpack(code, content)[0]) if len(content) == struct.calcsize(code) else None


def _protobuf() -> tuple[Any, type[Exception]]:
    try:
        from google.protobuf.message import DecodeError  # noqa: PLC0415
        from tensorboard.compat.proto import event_pb2  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra(
            "these event files hold more than plain scalars: pip install 'foreshock[logs]'"
        ) from error
    return event_pb2, DecodeError


def _only_tag(data: bytes, place: int) -> str | None:
    """The tag, if from `place` on there is one summary of one tag and one simple value."""
    end = len(data)
    for mark in (0x2A, 0x0A):  # summary, value
        if place >= end or data[place] != mark:
            return None
        length, place = _varint(data, place + 1)
        if place + length != end:
            return None
    if place >= end or data[place] != 0x0A:
        return None
    length, place = _varint(data, place + 1)
    if place + length + 5 != end or data[place + length] != 0x15:
        return None
    return data[place : place + length].decode("utf-8", "replace")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A whole number of seven bits a byte, and the place after it; -1 if it is none."""
    value = shift = 0
    while place < len(data) and shift < 63:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    return -1, len(data)
