"""Mirror a run in TensorBoard: event files of its own, or the writer that a loop has."""

import html
import importlib
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from foreshock.core.crc32c import crc32c, masked
from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.mirrored import THRESHOLD, Mirrored, MirroredNotice, MirroredRun, MirroredStep
from foreshock.core.sink import Mirror, MirrorSink

_READINGS: Final = ""
_THRESHOLDS: Final = "thresholds"
_DECISIONS: Final = "decisions"
_RUNS: Final = (_READINGS, _THRESHOLDS, _DECISIONS)


@dataclass(frozen=True, kw_only=True)
class TensorBoard(MirrorSink):
    """Write event files below `log_dir`, or into a `SummaryWriter` of the loop's own.

    Readings are the run `.`, under the names of their series. Thresholds have the same names in
    the run `thresholds`, so that one chart shows both. Alarms and notices are texts of the run
    `decisions`. The step is the optimizer step.

    When time goes back, TensorBoard is told to purge from that step on: it shows what was kept.
    What was decided stays, each attempt under a name of its own. A writer of the loop's own is
    never purged, as its steps may count something else: there old values make room as new ones
    reach their steps, and thresholds stand beside the readings, as `threshold/…`.

    Args:
        log_dir: where event files are written; several runs of one `tensorboard --logdir` each
            have a folder of their own.
        writer: a `torch.utils.tensorboard.SummaryWriter`, or another that has its methods, in
            place of `log_dir`. It is never closed.
        prefix: what the names begin with; with a `writer` best "foreshock/".

    Raises:
        ConfigError: there is neither `log_dir` nor a writer, or there are both.
    """

    name: ClassVar[str] = "tensorboard"
    log_dir: str = ""
    writer: Any = None
    prefix: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.log_dir) == (self.writer is not None):
            raise ConfigError("sinks.tensorboard needs log_dir, or a writer in its place")
        if self.writer is not None and not hasattr(self.writer, "add_scalar"):
            raise ConfigError(
                f"sinks.tensorboard.writer is {self.writer!r:.80}; it must be a SummaryWriter, "
                "which only code can give"
            )

    def mirrors(self, run: MirroredRun) -> Sequence[Mirror]:
        if self.writer is not None:
            return [_Writer(self.writer, self.prefix)]
        try:
            for module in ("event_pb2", "summary_pb2", "tensor_pb2", "types_pb2"):
                importlib.import_module(f"tensorboard.compat.proto.{module}")
        except ImportError as error:
            raise MissingExtra(
                "event files need tensorboard: pip install 'foreshock[tensorboard]'"
            ) from error
        return [_Files(Path(self.log_dir), self.prefix)]


class _Files:
    """Event files; see `Mirror`."""

    label = "tensorboard"

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._attempt = 0
        self._files: dict[str, Any] = {}
        self._event = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        self._tensor = importlib.import_module("tensorboard.compat.proto.tensor_pb2")
        self._types = importlib.import_module("tensorboard.compat.proto.types_pb2")

    def adopt(self) -> None:
        pass

    def open(self) -> None:
        for run in _RUNS:
            (self._folder / run).mkdir(parents=True, exist_ok=True)

    def take(self, said: Sequence[Mirrored]) -> None:
        if not self._files:
            self._create(said[0])
        for one in said:
            if isinstance(one, MirroredNotice):
                notice = one.notice
                text = f"**{_shown(notice.title)}**\n\n{_shown(notice.body)}"
                self._decided(one, f"notices/attempt-{one.attempt:05d}", text)
                continue
            if one.attempt != self._attempt:
                self._attempt = one.attempt
                self._begin(one)
            self._scalars(one)
            if one.alarms:
                text = "\n".join(f"* {_shown(line)}" for line in one.alarm_lines())
                self._decided(one, f"alarms/attempt-{one.attempt:05d}", text)
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

    def _create(self, first: Mirrored) -> None:
        """Begin a file for each run; TensorBoard reads those of a folder in the order of names."""
        name = f"events.out.tfevents.{int(first.time_secs):010d}.{socket.gethostname()}"
        name = f"{name}.{os.getpid()}.{first.attempt:05d}.foreshock"
        for run in _RUNS:
            self._files[run] = (self._folder / run / name).open("ab")
            self._put(run, self._event.Event(file_version="brain.Event:2"))

    def _begin(self, step: MirroredStep) -> None:
        """Purge what was measured from this step on: it was undone, or is an older run's."""
        log = self._event.SessionLog(status=self._event.SessionLog.START)
        for run in (_READINGS, _THRESHOLDS):
            event = self._event.Event(wall_time=step.time_secs, step=step.step, session_log=log)
            self._put(run, event)

    def _scalars(self, step: MirroredStep) -> None:
        values = step.scalars(self._prefix) if step.series else {}
        limits = step.limits()
        for series in limits:
            del values[f"{self._prefix}{THRESHOLD}{series}"]
        values.pop(f"{self._prefix}step", None)  # it is the axis
        self._put_values(_READINGS, step, values)
        named = {f"{self._prefix}{series}": limit for series, limit in limits.items()}
        self._put_values(_THRESHOLDS, step, named)

    def _put_values(self, run: str, step: MirroredStep, values: Mapping[str, float]) -> None:
        if not values:
            return
        summary = self._summary.Summary()
        for name, value in values.items():
            summary.value.add(tag=name, simple_value=value)
        event = self._event.Event(wall_time=step.time_secs, step=step.step, summary=summary)
        self._put(run, event)

    def _decided(self, said: Mirrored, tag: str, text: str) -> None:
        metadata = self._summary.SummaryMetadata()
        metadata.plugin_data.plugin_name = "text"
        tensor = self._tensor.TensorProto(dtype=self._types.DT_STRING, string_val=[text.encode()])
        summary = self._summary.Summary()
        summary.value.add(tag=f"{self._prefix}{tag}", metadata=metadata, tensor=tensor)
        event = self._event.Event(wall_time=said.time_secs, step=said.step, summary=summary)
        self._put(_DECISIONS, event)

    def _put(self, run: str, event: Any) -> None:
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        parts = (length, _checksum(length), data, _checksum(data))
        self._files[run].write(b"".join(parts))


class _Writer:
    """A writer of the loop's own; see `Mirror`."""

    label = "tensorboard"

    def __init__(self, writer: Any, prefix: str) -> None:
        self._writer, self._prefix = writer, prefix

    def adopt(self) -> None:
        pass

    def open(self) -> None:
        pass

    def take(self, said: Sequence[Mirrored]) -> None:
        for one in said:
            when = {"global_step": one.step, "walltime": one.time_secs}
            if isinstance(one, MirroredNotice):
                text = f"**{_shown(one.notice.title)}**\n\n{_shown(one.notice.body)}"
                tag = f"{self._prefix}notices/attempt-{one.attempt:05d}"
                self._writer.add_text(tag, text, **when)
                continue
            if one.series:
                for name, value in one.scalars(self._prefix).items():
                    self._writer.add_scalar(name, value, **when)
            if one.alarms:
                text = "\n".join(f"* {_shown(line)}" for line in one.alarm_lines())
                tag = f"{self._prefix}alarms/attempt-{one.attempt:05d}"
                self._writer.add_text(tag, text, **when)

    def close(self) -> None:
        self._writer.flush()


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked(crc32c(data)))


def _shown(text: str) -> str:
    """A text that is no markup, wherever TensorBoard shows it."""
    return html.escape(text)
